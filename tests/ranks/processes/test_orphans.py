"""Whatever dies, no process and no file stays behind."""

from __future__ import annotations

import contextlib
import glob
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

from helpers.ranks import RankError, Ranks
from helpers.ranks.processes import process
from tests.ranks.kernel import Kernel

SETTLE = 20  # seconds, at most; the wait ends as soon as the last process is gone


def wait_until_gone(pids):
    gone, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=SETTLE)
    assert not alive, f"still alive: {alive}"


def wait_until_removed(folders):
    end = time.monotonic() + SETTLE
    while any(map(os.path.exists, folders)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not [folder for folder in folders if os.path.exists(folder)]


@pytest.fixture
def kernel():
    kernel = Kernel()
    yield kernel
    with contextlib.suppress(Exception):
        kernel.close()


START = """
import os
from helpers.ranks import Ranks
from helpers.ranks.processes.process import zygote
ranks = Ranks(3, device='cpu', quiet=True)
print(*ranks.pids, zygote().process.pid)
print(ranks._pool.folder, ranks._pool.board)
"""


def started(kernel):
    numbers, folders = kernel.run(START).text.strip().splitlines()
    return [int(n) for n in numbers.split()], folders.split()


def test_a_kernel_killed_in_the_middle_of_a_step_leaves_nothing(kernel):
    pids, folders = started(kernel)
    kernel.start("%%ranks\nwhile True:\n    dist.all_reduce(torch.ones(1000))")
    time.sleep(0.5)  # let the step begin
    os.kill(kernel.pid, signal.SIGKILL)
    wait_until_gone(pids)
    wait_until_removed(folders)


def test_a_kernel_that_is_shut_down_leaves_nothing(kernel):
    pids, folders = started(kernel)
    kernel.close()
    wait_until_gone(pids)
    wait_until_removed(folders)


def test_ranks_die_with_a_zygote_that_is_killed_and_the_next_run_works(kernel):
    pids, _ = started(kernel)
    os.kill(pids[-1], signal.SIGKILL)
    wait_until_gone(pids[:-1])
    assert kernel.run("ranks.run(os.getpid)").error == "RankError"
    reply = kernel.run("print(*ranks.run(os.getpid))")
    assert reply.error is None, reply.shown
    assert set(map(int, reply.text.split())).isdisjoint(pids)


def test_nobody_waits_for_the_end_of_a_process_that_no_zygote_of_ours_has_started(monkeypatch):
    monkeypatch.setattr(process.zygote(), "_read", None)
    assert process.exit_status(1) is None


def test_a_script_that_ends_without_closing_leaves_nothing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from helpers.ranks import Ranks\nranks = Ranks(2, device='cpu', quiet=True)\nprint(*ranks.pids, flush=True)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    wait_until_gone(map(int, done.stdout.split()))


def folders_of(pid):
    return {path for place in (tempfile.gettempdir(), "/dev/shm") for path in glob.glob(f"{place}/ranks-{pid}-*")}


FAULTS = [
    "import os; rank == {r} and os._exit(1)\ndist.barrier()",
    "import os; rank == {r} and os.kill(os.getpid(), 9)\ndist.barrier()",
    "assert rank != {r}\ndist.barrier()",
    "if rank != {r}: dist.barrier()",
    "dist.all_reduce(torch.ones(3 if rank == {r} else 4))",
    "dist.all_reduce(torch.ones(3), async_op=rank == {r})\nassert rank != {r}",
]


@pytest.mark.parametrize("times", [2, pytest.param(17, marks=pytest.mark.slow)])
def test_faults_in_a_row_leave_no_process_and_no_file(times):
    """Every fault so many times, in an order of chance, on a rank of chance."""

    draw = random.Random(0)
    faults = draw.sample(FAULTS * times, len(FAULTS) * times)
    others = folders_of(os.getpid())  # of the pools that the session's tests share
    before = {child.pid for child in psutil.Process(process.zygote().process.pid).children()}
    with Ranks(3, device="cpu", quiet=True) as trio:
        for fault in faults:
            with pytest.raises(RankError):
                trio.cell(fault.format(r=draw.randrange(3)))
            assert trio.run(lambda: 1) == [1, 1, 1]
        last, zygote = trio.pids, psutil.Process(trio.pids[0]).parent()
        mine = {trio._pool.folder, trio._pool.board}
    wait_until_gone(last)
    assert folders_of(os.getpid()) - others == set(), f"the last ones were {mine}"
    assert set(child.pid for child in zygote.children()) <= before
