"""Inside the sandbox: what a learner imports and the lab forbids is noted; what a library imports is its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

START = """
import json, os, sys
from helpers.classroom import guard

def seen(source):
    # what was noted, and whether it was stopped
    guard.install("05", sys.argv[1], (), sys.argv[3])
    names, stopped = {}, False
    try:
        exec(compile(source, "cell count", "exec"), names)
        names.get("answer", lambda: None)()
    except guard.NotAllowed:
        stopped = True
    return guard.read_notes(sys.argv[1]), stopped

for source in json.loads(sys.argv[2]):
    pid = os.fork()  # each in a process of its own: no hook can be taken away again
    if pid == 0:
        print(json.dumps(seen(source)), flush=True)
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
    "exec('import helpers.grading.registry')": True,  # it is imported already
    FORGED: True,
}


def seen(tmp_path, sources, isolation_level="namespaces") -> dict:
    """A source to (what was noted, whether it was stopped)."""
    room = {**os.environ, "TMPDIR": str(tmp_path)}  # as in the sandbox: elsewhere nothing may be written
    command = [sys.executable, "-c", START, tmp_path, json.dumps(list(sources)), isolation_level]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=room)
    return dict(zip(sources, map(json.loads, done.stdout.splitlines()), strict=True))


def test_who_imports_decides_and_nobody_is_stopped(tmp_path):
    found = seen(tmp_path, SOURCES)
    assert {source: bool(noted) for source, (noted, _) in found.items()} == SOURCES
    assert not any(stopped for _, stopped in found.values())


def test_a_note_has_the_learners_line_in_every_language(tmp_path):
    ((noted, _),) = seen(tmp_path, ["x = 1\ndef answer():\n    import ctypes.wintypes"]).values()
    assert noted[0]["location"] == "cell count, line 3" and "内存" in noted[0]["reason"]["zh"]


def test_files_are_kept_from_it_where_there_is_no_wall_and_left_to_the_wall_where_there_is(tmp_path):
    (tmp_path / "home").mkdir()
    victim = tmp_path / "work"
    for isolation_level, is_stopped in (("plain", True), ("namespaces", False)):
        victim.write_text("of years")
        source = f"import os\nos.remove({str(victim)!r})"
        ((noted, stopped),) = seen(tmp_path / "home", [source], isolation_level).values()
        assert noted and stopped is is_stopped and victim.exists() is is_stopped


def test_forks_without_end_are_stopped(tmp_path):
    ((noted, stopped),) = seen(tmp_path, ["import os\nfor _ in range(9):\n    os.fork() or os._exit(0)"]).values()
    assert stopped and "os.fork" in noted[0]["reason"]["en"]
