"""Inside the sandbox: what a learner imports is refused where the lab forbids it; what a library imports is its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

START = """
import json, os, sys, traceback
from helpers.grading.classroom import guard

def is_refused(source):
    guard.install("05", sys.argv[1])
    names = {}
    try:
        exec(compile(source, "cell count", "exec"), names)
        names.get("answer", lambda: None)()
    except Exception:  # pydoc makes another of it
        return "NotAllowed" in traceback.format_exc()
    return False

for source in json.loads(sys.argv[2]):
    pid = os.fork()  # each in a process of its own: no hook can be taken away again
    if pid == 0:
        print(json.dumps(is_refused(source)), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""
META = "import torch\ndef answer():\n    with torch.device('meta'):\n        torch.nn.Embedding(3, 2)"
FORGED = "import os\nexec(compile('import ctypes.wintypes', os.__file__, 'exec'))"


SOURCES = {
    META: False,  # the first tensor on this device makes torch import a hundred modules, ctypes.wintypes among them
    "import ctypes.wintypes": True,
    "import importlib\nimportlib.import_module('ctypes.wintypes')": True,
    "import pydoc\npydoc.locate('ctypes.wintypes')": True,
    "exec('import helpers.parallel.ddp')": True,
    FORGED: True,
}


def test_who_imports_decides(tmp_path):
    room = {**os.environ, "TMPDIR": str(tmp_path)}  # as in the sandbox: elsewhere nothing may be written
    command = [sys.executable, "-c", START, tmp_path, json.dumps(list(SOURCES))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=room)
    assert dict(zip(SOURCES, map(json.loads, done.stdout.splitlines()), strict=True)) == SOURCES, done.stderr
