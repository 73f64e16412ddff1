"""Inside the sandbox: what a learner imports and the lab forbids is noted; what a library imports is its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from helpers.classroom.isolation import ROOT

START = """
import json, os, sys
from helpers.classroom import guard

def seen(source):
    # what was noted, and whether it was stopped
    guard.install("05", sys.argv[1], sys.argv[3])
    names, stopped, note_replaced = {}, False, guard.watch_answer(is_metered=True)
    try:
        exec(compile(source, "cell count", "exec"), names)
        names.get("answer", lambda: None)()
    except guard.NotAllowed:
        stopped = True
    except Exception:  # a source need not work for what it tries to be noted
        pass
    note_replaced()
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
    "exec('import helpers.parallel.ddp')": True,
    "exec('import helpers.grading.registry')": True,  # it is imported already
    FORGED: True,
}
LOGGED = "import logging.config\nlogging.config.BaseConfigurator({}).resolve('%s')"
PATCH = "import helpers.grading.observed_function as r, helpers.observe.comms as c, torch, torch.distributed as dist\n"
GROUP = "import torch, torch.distributed as dist\n"
GROUP += "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)"
WEIGHT = "import torch, numpy\nt = torch.ones(200)\n"
# What a source is noted for.
NOTED = {
    LOGGED % "os.system" + "('true')": "starts",
    LOGGED % "sys._getframe" + "()": "frames",
    LOGGED % "builtins.exec" + "('x = 1')": "runs or reads",
    LOGGED % "gc.get_objects" + "()": "memory",
    "import pickle\npickle.loads(b'cos\\ngetcwd\\n.')": "finds an object",
    "import numpy as np\nnp.save('x.npy', np.ones(1))": "opens files",
    "import numpy as np\nnp.ones(1).tofile('x')": "opens files",
    "import numpy as np\nnp.memmap('x', mode='w+', shape=3)": "opens files",
    "import torch\ntorch.save(1, 'x')": "opens files",
    "import torch\ntorch.from_file('x', shared=True, size=3)": "opens files",
    "import torch\ntorch.FloatStorage.from_file('x', shared=True, size=3)": "opens files",
    "import torch\ntorch.ones(1).untyped_storage()._write_file('x', True, True, 8)": "opens files",
    "import logging\nlogging.basicConfig(filename='x')": "opens files",
    "open('/proc/self/status')": "opens files",
    "import os\nos.mkdir('x')": "opens files",
    "from multiprocessing import shared_memory\nshared_memory.SharedMemory('x43', True, 8).unlink()": "memory",
    "import socket\nsocket.socket()": "network",
    f"{PATCH}r.is_unchanged = lambda before, value: True": "replaces helpers.grading.observed_function.is_unchanged",
    f"{PATCH}c.CommRecorder.add = print": "replaces CommRecorder.add",
    f"{PATCH}r.ObservedFunction.__call__.__code__ = (lambda self, *a, **k: 1).__code__": "replaces ObservedFunction",
    f"{PATCH}dist.all_reduce = print": "replaces torch.distributed.all_reduce",
    f"{PATCH}torch.equal = lambda a, b: True": "replaces torch.equal",
    f"{PATCH}torch.Tensor.add_ = print": "replaces Tensor.add_",
    f"{GROUP}\ndist.group.WORLD.allreduce([torch.ones(1)]).wait()": "what the log does not see",
    f"{GROUP}\nnext(iter([dist.group.WORLD])).get_group_store()": "what the log does not see",
    f"{WEIGHT}t.tolist()": "moves many",
    f"{WEIGHT}[float(x) for x in t]": "moves many",
    f"{WEIGHT}numpy.asarray(t)": "moves many",
    f"{WEIGHT}bytes(t.untyped_storage())": "moves many",
    f"{WEIGHT}import pickle\npickle.dumps(t)": "moves many",
}
HONEST = [
    "import torch\ntorch.ones(100).sum().item()",
    "import warnings\nwarnings.warn('hm')",
    "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()",
    "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int",
    "import collections\ncollections.namedtuple('B', 'x')",
    "import copy, torch\ncopy.deepcopy(torch.nn.Linear(2, 2))",
    "import torch\ntorch.utils.checkpoint.checkpoint(torch.sin, torch.ones(3), use_reentrant=False)",
]


def seen(tmp_path, sources, isolation_level="namespaces") -> dict:
    """A source to (what was noted, whether it was stopped)."""
    # As in the sandbox: elsewhere nothing may be written.
    room = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", START, tmp_path, json.dumps(list(sources)), isolation_level]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=room, cwd=tmp_path)
    return dict(zip(sources, map(json.loads, done.stdout.splitlines()), strict=True))


def test_who_imports_decides_and_nobody_is_stopped(tmp_path):
    found = seen(tmp_path, SOURCES)
    assert {source: bool(noted) for source, (noted, _) in found.items()} == SOURCES
    assert not any(stopped for _, stopped in found.values())


def test_what_no_honest_answer_does_is_noted(tmp_path):
    for source, (noted, stopped) in seen(tmp_path, NOTED).items():
        assert any(NOTED[source] in one["reason"]["en"] for one in noted) and not stopped, (source, noted)


def test_what_libraries_do_for_an_honest_answer_is_not_noted(tmp_path):
    assert {source: noted for source, (noted, _) in seen(tmp_path, HONEST).items() if noted} == {}


def test_notes_cannot_be_deleted(tmp_path):
    sources = ("open('notes.txt', 'w')", "import os\nos.remove('notes.txt')", "import os\nos.rename('notes.txt', 'x')")
    sources += ("import os\nopen('x', 'w')\nos.replace('x', 'notes.txt')", "import torch\ntorch.save(1, 'notes.txt')")
    found = seen(tmp_path, [f"import os\nos.chdir({str(tmp_path)!r})\nos.listdir('.')\n{one}" for one in sources])
    for source, (noted, stopped) in found.items():
        assert stopped and "os.listdir" in noted[0]["reason"]["en"], (source, noted)


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
