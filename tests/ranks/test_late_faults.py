"""No fault is late: the whole matrix, again and again, while other processes want every core.

Every fault is timed until its RankError is there and the ranks can go on. The refusal to be interrupted is not among
them: it is given its time, which grows with the crowd.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from functools import partial
from textwrap import indent

import pytest

from helpers.ranks import RankError, Ranks
from tests.ranks.test_faults import PREPARE, WHILE_OTHERS_WAIT
from tests.ranks.wire.test_mismatch import CASES, PAIRS, raise_it, raise_pair

REPETITIONS, LIMIT, SEED = 50, 3.0, 15
FIRST_USE = "model = TorchDDP(Branch())\nmodel(torch.ones(2, 4), False).sum().backward()"
READY = "if 'kept' not in globals():\n" + indent(PREPARE, "    ")
BUSY = "import os\nwhile os.getppid() == {parent}: sum(range(100_000))"  # ends with this process, whatever ends it


@pytest.fixture
def crowd():
    """A process for each core that never rests."""
    command = [sys.executable, "-c", BUSY.format(parent=os.getpid())]
    busy = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.fixture
def worlds():
    """Of four ranks, of two, and of four that die. The first use of torch's DDP imports for seconds, on every rank."""
    with contextlib.ExitStack() as stack:
        four, two, dying = (stack.enter_context(Ranks(size, device="cpu", quiet=True)) for size in (4, 2, 4))
        four.cell(PREPARE + FIRST_USE)
        yield four, two, dying


def matrix(four, two, dying, draw):
    """(name, what raises it) for every fault, in an order of chance."""
    faults = [(f.name, partial(dying.cell if f.variables == "lost" else four.cell, f.cell)) for f in WHILE_OTHERS_WAIT]
    faults += [(case.__name__, partial(four.run, raise_it, case, draw.choice([1, 3]))) for case in CASES]
    faults += [(case.__name__, partial(two.run, raise_pair, case)) for case in PAIRS]
    return draw.sample(faults, len(faults))


def seconds_of(fault):
    start = time.monotonic()
    with pytest.raises(RankError):
        fault()
    return time.monotonic() - start


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_fault_is_late(worlds, crowd):
    draw, times = random.Random(SEED), []
    for repetition in range(REPETITIONS):
        for name, fault in matrix(*worlds, draw):
            with contextlib.redirect_stdout(None):
                worlds[0].cell(READY), worlds[2].cell(READY)
                times.append((seconds_of(fault), name, repetition))
    times.sort(reverse=True)
    print(f"{len(times)} faults; the slowest: {times[:5]}; the median: {times[len(times) // 2][0]:.2f} s")
    assert times[0][0] < LIMIT, times[:5]
