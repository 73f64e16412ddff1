"""The fault matrix, in a real Jupyter kernel: each fault is named with its rank and line, and the next cell works.

Ranks wait in collectives while one of them does something wrong. What is expected: the kind, the rank to blame, words
that the message must hold. No fault may take longer than LIMIT to be reported, and none may leave a wrong result.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

LIMIT = 30  # seconds; a fault that is never reported, not a measure of speed (test_late_faults.py measures)


@dataclass(frozen=True)
class Fault:
    name: str
    cell: str  # what follows %%ranks
    kind: str
    says: tuple[str, ...]
    variables: str = "kept"  # or "lost"


PREPARE = """
from torch.nn.parallel import DistributedDataParallel as TorchDDP
x, y, half = torch.ones(4), torch.ones(6), torch.ones(4, dtype=torch.float16)
class Branch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    def forward(self, x, skip):
        return self.a(x) if skip else self.b(self.a(x))
kept = rank + 40
"""

WHILE_OTHERS_WAIT = [
    Fault(
        "exception",
        "if rank == 1:\n    raise ValueError('a bad batch')\ndist.all_reduce(x)",
        "exception",
        ("rank 1 raised ValueError: a bad batch", "cell line 3", "ranks 0, 2, 3 wait in all_reduce, cell line 4"),
    ),
    Fault(
        "exit",
        "if rank == 2:\n    import os; os._exit(3)\ndist.all_reduce(x)",
        "died",
        ("rank 2 died", "exit code 3", "cell line 3", "variables are lost"),
        "lost",
    ),
    Fault(
        "sigkill",
        "if rank == 2:\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(x)",
        "died",
        ("rank 2 died", "SIGKILL", "cell line 4"),
        "lost",
    ),
    Fault(
        "segfault",
        "if rank == 0:\n    import ctypes\n    ctypes.string_at(0)\ndist.all_reduce(x)",
        "died",
        ("rank 0 died", "SIGSEGV", "cell line 4"),
        "lost",
    ),
    Fault(
        "skipped at the end",
        "if rank != 1:\n    dist.all_reduce(x)",
        "hang",
        (
            "rank 1 finished without calling the all_reduce that others wait for",
            "ranks 0, 2, 3 wait in all_reduce, cell line 3",
        ),
    ),
    Fault(
        "skipped, async",
        "if rank != 1:\n    work = dist.all_reduce(x, async_op=True)\n    work.wait()",
        "hang",
        ("rank 1 finished without calling the all_reduce that others wait for", "cell line 4"),
    ),
    Fault(
        "skipped, with an equal neighbour",
        "if rank != 1:\n    dist.all_reduce(x)\ndist.all_reduce(x)\nx",
        "hang",
        ("rank 1",),
    ),
    Fault(
        "sent to nobody",
        "if rank == 0:\n    dist.send(x, dst=1)",
        "hang",
        ("rank 1 finished without calling the recv that others wait for", "rank 0 waits in send, cell line 3"),
    ),
    Fault(
        "expected of nobody",
        "if rank == 0:\n    dist.recv(x, src=1)",
        "hang",
        ("rank 1 finished without calling the send that others wait for", "rank 0 waits in recv, cell line 3"),
    ),
    Fault(
        "skipped, and never waited for",
        "if rank != 1:\n    work = dist.all_reduce(x, async_op=True)\nrank",
        "mismatch",
        ("rank 1", "cell line 3"),
    ),
    Fault(
        "shapes",
        "dist.all_reduce(y if rank == 1 else x)",
        "mismatch",
        ("rank 1", "(6,)", "(4,)", "cell line 2"),
    ),
    Fault("dtypes", "dist.all_reduce(half if rank == 1 else x)", "mismatch", ("rank 1", "float16", "float32")),
    Fault(
        "reduce ops",
        "dist.all_reduce(x, dist.ReduceOp.MAX if rank == 3 else dist.ReduceOp.SUM)",
        "mismatch",
        ("rank 3", "MAX", "SUM"),
    ),
    Fault(
        "shapes, and the error is caught",
        "try:\n    dist.all_reduce(y if rank == 1 else x)\nexcept RuntimeError:\n    pass\nrank",
        "mismatch",
        ("rank 1", "(6,)", "cell line 3"),
    ),
    Fault(
        "another bucket inside torch's DDP",
        "model = torch.nn.Linear(4, 4, bias=rank != 1)\n"
        "model = TorchDDP(model, init_sync=False)\n"
        "model(torch.ones(2, 4)).sum().backward()",
        "mismatch",
        ("rank 1", "(16,)", "(20,)", "cell line 4"),
    ),
    Fault("roots", "dist.broadcast(x, src=1 if rank == 1 else 0)", "mismatch", ("rank 1", "root")),
    Fault(
        "operations",
        "if rank == 1:\n    dist.broadcast(x, src=0)\nelse:\n    dist.all_reduce(x)",
        "mismatch",
        ("rank 1", "broadcast", "all_reduce"),
    ),
    Fault(
        "shapes, async",
        "work = dist.all_reduce(y if rank == 1 else x, async_op=True)\nwork.wait()",
        "mismatch",
        ("rank 1", "(6,)"),
    ),
    Fault(
        "a skipped branch inside torch's DDP",
        "model = TorchDDP(Branch())\nmodel(torch.ones(2, 4), rank == 1).sum().backward()",
        "hang",
        ("rank 1 finished without calling the all_reduce that others wait for", "cell line 3"),
    ),
    Fault(
        "another model inside torch's DDP",
        "import torch.nn as nn\nmodel = nn.Linear(4, 8 if rank == 1 else 4)\nTorchDDP(model)",
        "exception",
        ("rank 1 raised RuntimeError", "sizes [8, 4]", "cell line 4"),
    ),
    Fault(
        "everyone receives first",
        "dist.recv(x, src=(rank + 1) % 4)",
        "hang",
        ("every rank waits for another one", "recv", "cell line 2"),
    ),
    Fault(
        "a subset that never answers",
        "group = dist.new_group([0, 1])\nif rank == 0:\n    dist.all_reduce(x, group=group)",
        "hang",
        (
            "rank 1 finished without calling the all_reduce that others wait for",
            "rank 0 waits in all_reduce, cell line 4",
        ),
    ),
    Fault(
        "every rank raises",
        "nosuchname",
        "exception",
        ("ranks 0-3 raised NameError: name 'nosuchname' is not defined", "cell line 2", "variables are kept"),
    ),
    Fault("a syntax error", "x = = 1", "exception", ("ranks 0-3 raised SyntaxError", "cell line 2")),
]


def ranks_cell(kernel, source, **kwargs):
    return kernel.run(f"%%ranks\n{source}", **kwargs)


def assert_next_cell_works(kernel, variables):
    reply = ranks_cell(kernel, "z = torch.ones(1)\ndist.all_reduce(z)\nz.item()", limit=LIMIT)
    assert reply.error is None, reply.shown
    assert reply.text.endswith("ranks 0-3 │ 4.0\n")
    if variables == "kept":
        assert ranks_cell(kernel, "kept - rank").text == "ranks 0-3 │ 40\n"


@pytest.mark.parametrize("fault", WHILE_OTHERS_WAIT, ids=lambda fault: fault.name)
def test_fault(kernel, fault):
    assert ranks_cell(kernel, PREPARE).error is None
    reply = ranks_cell(kernel, fault.cell, limit=LIMIT)
    assert reply.error == "RankError", f"no error, but printed {reply.text!r} {reply.shown}"
    assert reply.shown.startswith(f"RankError ({fault.kind})"), reply.shown
    for words in fault.says:
        assert words in reply.message, reply.message
    assert "watch.py" not in reply.shown and "pool.py" not in reply.shown
    assert_next_cell_works(kernel, fault.variables)


def interrupted(kernel, source, place):
    """What a cell says that is interrupted as soon as every rank has come past its first line."""
    message = kernel.start(f"%%ranks\nopen(f'{place}/{{rank}}', 'w').close()\n{source}")
    end = time.monotonic() + LIMIT
    while len(list(place.iterdir())) < 4 and time.monotonic() < end:
        time.sleep(0.02)
    kernel.interrupt()
    return kernel.finish(message, limit=LIMIT)


def test_an_endless_loop_is_interrupted_and_every_line_shown(kernel, tmp_path):
    ranks_cell(kernel, PREPARE)
    source = "if rank == 1:\n    print('looping')\n    while True: pass\ndist.all_reduce(x)"
    reply = interrupted(kernel, source, tmp_path)
    assert reply.shown.startswith("RankError (interrupted)"), reply.shown
    assert "rank 1 is at cell line 5" in reply.message
    assert "ranks 0, 2, 3 wait in all_reduce, cell line 6" in reply.message
    assert_next_cell_works(kernel, "kept")


def test_a_rank_that_refuses_to_be_interrupted_is_replaced(kernel, tmp_path):
    ranks_cell(kernel, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    reply = interrupted(kernel, "while True: pass", tmp_path)
    assert reply.shown.startswith("RankError (interrupted)") and "variables are lost" in reply.message
    assert_next_cell_works(kernel, "lost")


def test_a_cell_beyond_its_time(kernel):
    ranks_cell(kernel, PREPARE)
    reply = kernel.run("%%ranks --timeout 1\nif rank == 0:\n    while True: pass\ndist.all_reduce(x)", limit=LIMIT)
    assert reply.shown.startswith("RankError (timeout)"), reply.shown
    assert "no end after 1 s" in reply.message and "rank 0 is at cell line 3" in reply.message
    assert_next_cell_works(kernel, "kept")


def test_a_rank_that_keeps_pythons_lock_has_its_line_too(kernel):
    ranks_cell(kernel, PREPARE)
    endless = "import re\nif rank == 1:\n    re.match('(a+)+$', 'a' * 64 + 'b')\ndist.all_reduce(x)"
    reply = kernel.run(f"%%ranks --timeout 4\n{endless}", limit=LIMIT)
    assert "rank 1 does not answer, because C code holds Python's lock (GIL), at cell line 4" in reply.message, (
        reply.message
    )
    assert_next_cell_works(kernel, "lost")


def test_objects_that_hold_the_old_group_are_named(kernel):
    ranks_cell(kernel, PREPARE + "group = None\nmodel = TorchDDP(torch.nn.Linear(2, 2))\nplain = torch.nn.Linear(2, 2)")
    reply = ranks_cell(kernel, "if rank == 0:\n    raise ValueError()\ndist.barrier()")
    assert "but `model` still holds the old process group: make it again" in reply.message, reply.message
    assert_next_cell_works(kernel, "kept")


def test_what_was_printed_before_the_failure_is_shown(kernel):
    reply = ranks_cell(kernel, "print('rank', rank, 'was here')\nassert rank != 2, 'no twos'")
    assert "rank 3 │ rank 3 was here" in reply.text
    assert "rank 2 raised AssertionError: no twos" in reply.message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("0,9", "there is no rank 9: these are ranks 0 to 3"),
        ("zero", "%%ranks takes rank numbers such as 0,2 but got 'zero'"),
        ("--wait 3", "write it as %%ranks"),
        ("--timeout soon", "write it as %%ranks"),
    ],
)
def test_a_wrong_line_of_the_magic(kernel, line, says):
    reply = kernel.run(f"%%ranks {line}\nrank")
    assert reply.error == "ValueError" and says in reply.message


def test_a_function_of_a_cell_names_its_cell(kernel):
    kernel.run(
        "import torch.distributed as dist\ndef step():\n    if dist.get_rank() == 1:\n        raise KeyError('w')"
    )
    reply = kernel.run("ranks.run(step)")
    assert "rank 1 raised KeyError: 'w'" in reply.message
    assert "line 4: `raise KeyError('w')`" in reply.message, reply.message


BAD_INPUT = [  # where other tests read the sentences themselves; here they come without our frames
    ("Ranks(0)", "there must be at least 1 rank, but got 0"),
    ("ranks[1:3]", "a smaller world is the first ranks of this one"),
    ("import threading\nlock = threading.Lock()\nranks.run(lambda: lock)", "because of `lock`"),
]


@pytest.mark.parametrize(("source", "says"), BAD_INPUT, ids=[source for source, _ in BAD_INPUT])
def test_bad_input_gets_a_sentence_and_the_ranks_stay(kernel, source, says):
    reply = kernel.run(source)
    assert reply.error == "ValueError" and says in reply.message, reply.shown
    assert "helpers/ranks" not in reply.shown, reply.shown
    assert_next_cell_works(kernel, "unknown")
