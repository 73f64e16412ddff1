"""Inside the sandbox: what a learner imports is refused where the lab forbids it; what a library imports is its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

START = """
import sys
from helpers.grading.classroom import guard
guard.install("05", sys.argv[1])
names = {}
exec(compile(sys.argv[2], "cell count", "exec"), names)
names.get("answer", lambda: None)()
"""
META = "import torch\ndef answer():\n    with torch.device('meta'):\n        torch.nn.Embedding(3, 2)"
FORGED = "import os\nexec(compile('import ctypes.wintypes', os.__file__, 'exec'))"


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        (
            META,
            False,
        ),  # the first tensor on this device makes torch import a hundred modules, ctypes.wintypes among them
        ("import ctypes.wintypes", True),
        ("import importlib\nimportlib.import_module('ctypes.wintypes')", True),
        ("import pydoc\npydoc.locate('ctypes.wintypes')", True),
        ("exec('import helpers.parallel.ddp')", True),
        (FORGED, True),
    ],
)
def test_who_imports_decides(source, is_refused, tmp_path):
    room = {**os.environ, "TMPDIR": str(tmp_path)}  # as in the sandbox: elsewhere nothing may be written
    command = [sys.executable, "-c", START, tmp_path, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=room)
    assert ("NotAllowed" in done.stderr) == is_refused == (done.returncode != 0), done.stderr
