"""Hangs on purpose, under torch alone: is the rank right, and the line, and does torch's own analyzer agree?

    python -m benchmarks.hangs [--seed 1] [--only skipped,order] [--under ddp]

A script of 3 ranks with one fault, in every kind, under plain collectives, DistributedDataParallel and fully_shard. The
rank and the step are drawn by the seed. Right are sentences that name the rank (of a message without its answer: both
ends) and a line that is marked with the fault. The analyzer agrees where it names the same number and the same ranks or
all others: of two sides it takes the first rank's.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from benchmarks.paired import write_table
from helpers.commands.jobs.hang import HangReport, watch_job
from helpers.commands.jobs.hang_cause import HangCause

SCRIPT = """\
import os, signal, sys, time, threading, torch, torch.distributed as dist
from torch import nn
kind, under, bad, at, world = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), 3
for rank in range(world):  # torch is imported once
    if os.fork() == 0:
        break
else:
    sys.exit(any([os.wait()[1] for _ in range(world)]))
dist.init_process_group("gloo", init_method=f"file://{__file__}.{os.getppid()}", rank=rank, world_size=world)
pair = [dist.new_group(list(range(world))) for _ in range(2)]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
if under == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif under == "fsdp":
    from torch.distributed.fsdp import fully_shard
    for layer in (model[0], model[2], model):
        fully_shard(layer)
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        if kind == "worker" and rank == bad and i == 8 * at:
            time.sleep(10_000)  # worker
        return torch.full((16,), float(i))
loader = torch.utils.data.DataLoader(Data(), 8, num_workers=int(kind == "worker"))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
lock = threading.Lock()
for step, x in enumerate(loader):
    broken = rank == bad and step == at
    if kind == "finished" and broken:
        break  # finished
    loss = model(x).square().mean()  # backward finished
    if not (kind == "backward" and broken):
        loss.backward()  # backward finished
        if under == "plain":
            for p in model.parameters():
                dist.all_reduce(p.grad)  # backward finished
    optimizer.step()
    metric = loss.detach().clone()
    if not (kind == "skipped" and broken):
        dist.all_reduce(metric)  # skipped
    if kind == "branch" and broken:
        dist.broadcast(metric, 0)  # branch
    elif kind == "branch":
        dist.all_reduce(metric)  # branch
    if kind == "order":
        for op in (dist.broadcast, dist.reduce) if broken else (dist.reduce, dist.broadcast):
            op(metric, 0)  # order
    if kind == "groups":
        for group in reversed(pair) if broken else pair:
            dist.all_reduce(metric, group=group)  # groups
    if kind == "shapes":
        dist.all_reduce(torch.ones(4 + broken))  # shapes
    if kind == "crashed" and broken:
        import ctypes; ctypes.string_at(0)  # crashed
    if kind == "killed" and broken:  # killed
        time.sleep(0.7); os.kill(os.getpid(), signal.SIGKILL)  # killed
    if kind == "raised" and broken:
        raise ValueError("no such label")  # raised
    while kind == "loop" and broken:  # loop
        pass  # loop
    while kind == "polls" and broken and not os.path.exists("/nowhere"):  # polls
        time.sleep(0.05)  # polls
    if kind == "lock" and broken:
        lock.acquire(); lock.acquire()  # lock
    if kind == "send" and broken:
        dist.send(torch.ones(1 << 18), (bad + 1) % world)  # send
    if kind == "recv" and broken:
        dist.recv(torch.ones(4), (bad + 1) % world)  # recv
dist.barrier()
dist.destroy_process_group()
"""
COLLECTIVE = ("skipped", "backward", "branch", "order", "groups", "shapes")
KINDS = ("lock", "send", "recv", "worker", "killed", "raised", "polls", "loop", "crashed", "finished", *COLLECTIVE)
UNDER = ("plain", "ddp", "fsdp")
LIMIT = 2.0  # seconds
RESULTS = ("rank", "line", "torch's analyzer")


def marked(kind: str) -> set[int]:
    """The lines of the script at which this fault is."""
    return {number for number, line in enumerate(SCRIPT.splitlines(), 1) if kind in line.partition("  # ")[2].split()}


def agrees(found: HangReport) -> bool:
    said, part = found.torch, found.cause.divergence
    ours, theirs = set(found.cause.ranks), set(said.ranks if said else ())
    return part is not None and said.number == part.number and ours in (theirs, set(found.state.ranks) - theirs)


def named(cause: HangCause) -> set[int]:
    """Every line in its sentences."""
    part = cause.divergence
    calls = [*part.first_calls.values(), *part.calls.values()] if part else []
    return {frame[1] for frame in (cause.line, cause.op_line, *(call.line for call in calls)) if frame}


def measure(kind: str, under: str, seed: int, script: Path) -> dict[str, object]:
    """One job with one fault, and what of it was right. The analyzer is asked where the fault lies in collectives."""
    draw = random.Random(f"{seed} {kind} {under}")
    bad, at = draw.randrange(3), draw.randrange(1, 6)
    command = [sys.executable, str(script), kind, under, str(bad), str(at)]
    found = watch_job(command, limit=LIMIT, env={"OMP_NUM_THREADS": "1"})
    if found.outcome == "interrupted":
        raise SystemExit(found.exit_code)
    cause, ends = found.cause, {bad, (bad + 1) % 3} if kind in ("send", "recv") else {bad}
    blamed = set(cause.ranks) | ({cause.peer} - {None})
    right = [blamed == ends, bool(named(cause) & marked(kind)), agrees(found) if kind in COLLECTIVE else None]
    print(kind, under, f"rank {bad} in step {at}", *right, found, sep="\n", file=sys.stderr, flush=True)
    words = {True: "right", False: "wrong", None: "–"}
    return {"fault": kind, "under": under, "verdict": cause.kind} | {
        name: words[one] for name, one in zip(RESULTS, right, strict=True)
    }


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", default=",".join(KINDS))
    options.add_argument("--under", default=",".join(UNDER))
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT, encoding="utf-8")
        rows = [
            measure(kind, under, given.seed, script)
            for kind in given.only.split(",")
            for under in given.under.split(",")
        ]
    for row in rows:
        print(row)
    if len(rows) == len(KINDS) * len(UNDER):
        write_table("hangs", rows, f"python -m benchmarks.hangs --seed {given.seed}")


if __name__ == "__main__":
    main()
