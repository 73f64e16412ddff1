"""How fast ranks start, answer and fail: `python -m benchmarks.ranks` writes benchmarks/results/ranks.md."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

from benchmarks.paired import write_table
from helpers.ranks import RankError, Ranks
from helpers.ranks.live import proportional_bytes

COMMAND = "python -m benchmarks.ranks"
COLD = """
import time; start = time.perf_counter()
from helpers.ranks import Ranks
ranks = Ranks(4, device="cpu", quiet=True)
ranks.cell("x = torch.ones(1000); dist.all_reduce(x)")
print(time.perf_counter() - start)
"""
CROWD = """
from helpers.ranks import Ranks
ranks = Ranks(4, device="cpu", quiet=True)
def steps():
    import torch, torch.distributed as dist
    x = torch.zeros(10_000)
    for _ in range(200):
        torch.randn(200, 200) @ torch.randn(200, 200)
        dist.all_reduce(x)
    return 200
assert ranks.run(steps) == [200] * 4
print("no false hang")
"""
FAULTS = {
    "exception": "if rank == 1: raise ValueError()\ndist.barrier()",
    "os._exit": "import os\nif rank == 1: os._exit(1)\ndist.barrier()",
    "SIGKILL": "import os\nif rank == 1: os.kill(os.getpid(), 9)\ndist.barrier()",
    "skipped collective": "if rank != 1: dist.all_reduce(torch.ones(4))",
    "skipped, async_op": "if rank != 1: dist.all_reduce(torch.ones(4), async_op=True).wait()",
    "skipped inside torch's DDP": (
        "import torch.nn as nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)\n"
        "    def forward(self, x, skip):\n"
        "        return self.a(x) if skip else self.b(self.a(x))\n"
        "model = nn.parallel.DistributedDataParallel(Net())\n"
        "model(torch.ones(1, 4), rank == 1).sum().backward()"
    ),
    "unequal shapes": "dist.all_reduce(torch.ones(4 + (rank == 1)))",
    "unequal dtypes": "dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 1 else torch.float32))",
    "unequal reduce ops": "dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)",
    "unequal roots": "dist.broadcast(torch.ones(4), src=int(rank == 1))",
}


def script(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


def seconds_of(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def start_rows() -> list[dict]:
    cold = statistics.median(float(script(COLD)) for _ in range(5))
    with Ranks(4, device="cpu", quiet=True) as ranks:
        ranks.run(dist.barrier)
        warm = statistics.median(seconds_of(lambda: ranks.run(int)) for _ in range(300))
        sizes = [proportional_bytes(pid) / 1e6 for pid in ranks.pids]
        kernel = proportional_bytes(os.getpid()) / 1e6
    return [
        row("Ranks(4) to the end of the first all-reduce, cold (median of 5)", f"{cold:.2f} s", "3 s"),
        row("warm run(no-op), 4 ranks (median of 300)", f"{warm * 1e3:.2f} ms", "2 ms"),
        row("memory of an idle rank (PSS, largest of 4)", f"{max(sizes):.0f} MB", "60 MB"),
        row("memory of this kernel, torch imported, with 4 ranks (PSS)", f"{kernel + sum(sizes):.0f} MB", "reported"),
    ]


def fault_rows() -> list[dict]:
    rows = []
    with Ranks(4, device="cpu", quiet=True) as ranks:
        for name, cell in FAULTS.items():
            times = [seconds_of(lambda: fail(ranks, cell)) for _ in range(5)]  # noqa: B023
            rows.append(row(f"{name} on rank 1 of 4: reported and recovered, worst of 5", f"{max(times):.2f} s", "3 s"))
        times = [interrupted(ranks) for _ in range(3)]
        rows.append(row("endless loop, interrupt to answer, worst of 3", f"{max(times):.2f} s", "1 s"))
    return rows


def fail(ranks: Ranks, cell: str) -> None:
    try:
        ranks.cell(cell)
    except RankError as error:
        assert "rank 1" in str(error), error
        return
    raise AssertionError(f"no error from {cell!r}")


def interrupted(ranks: Ranks) -> float:
    sent = []

    def interrupt() -> None:
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(1.5, interrupt).start()
    try:
        ranks.cell("while True: pass")
    except RankError as error:
        assert error.kind == "interrupted" and "ranks 0-3" in str(error), error
    return time.perf_counter() - sent[0]


def crowd_row() -> dict:
    start = time.perf_counter()
    kernels = [subprocess.Popen([sys.executable, "-c", CROWD], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    said = [kernel.communicate(timeout=500)[0].strip() for kernel in kernels]
    ended = said.count("no false hang")
    return row(
        f"8 kernels x 4 ranks, 200 steps each ({time.perf_counter() - start:.0f} s)",
        f"{8 - ended} false hangs",
        "no false hang",
    )


def row(what: str, measured: str, goal: str) -> dict:
    return {"what": what, "measured": measured, "goal": goal}


def main() -> None:
    torch.set_num_threads(1)
    rows = start_rows() + fault_rows() + [crowd_row()]
    print(write_table("ranks", rows, COMMAND).read_text())


if __name__ == "__main__":
    main()
