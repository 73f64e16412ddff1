"""What NCCL's rules cost: a step with the journal against the same step without: `python -m benchmarks.nccl_rules`.

Goal: at most 1.05 for a DDP step, and never above 1.15. The rules are asked at each operation, so one model's steps
run with them and without them in turn, A B A B, on the same ranks. One row has no rules on either side: what differs
there is the noise of this table. On cards the rules tell which buffers are in use; the card looks on both sides.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.paired import Ratio, ratio_of, write_table
from benchmarks.wire_overhead import PAIRS, WARMUP, all_reduce, mlp, ping_pong, timed
from helpers.ranks import Ranks
from helpers.ranks.wire import wire

GOAL = 1.05


def ddp_step(group: dist.ProcessGroup, bucket_mb: float):
    where = "card" if hasattr(torch, "card") else "cpu"
    model = DistributedDataParallel(mlp().to(where), process_group=group, bucket_cap_mb=bucket_mb)
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(16, 1024, device=where)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


CASES = [
    ("DDP step, 21 M parameters, 25 MB buckets", ddp_step, 25, 1),
    ("DDP step, 21 M parameters, 1 MB buckets", ddp_step, 1, 1),
    ("no rules on either side: DDP step", ddp_step, 25, 1),
    ("all_reduce of 4 kB", all_reduce, 4e3, 50),
    ("send 4 kB there and back", ping_pong, 4e3, 50),
]


def pairs_on_a_rank(number: int) -> tuple[list[float], list[float]]:
    """Seconds with the rules and without, in interleaved pairs."""
    name, make, size, repeats = CASES[number]
    step, bare, session = make(dist.group.WORLD, size), dist.new_group(backend="gloo"), wire._world.session
    rules, seconds = session.rules, ([], [])
    for pair in range(WARMUP + PAIRS):
        for which in (0, 1) if pair % 2 else (1, 0):
            session.rules = None if which or name.startswith("no rules") else rules
            taken = timed(step, repeats, bare)
            seconds[which].extend([taken] if pair >= WARMUP else [])
    session.rules = rules
    return seconds


def ratio(ranks: Ranks, number: int) -> Ratio:
    """Time with the rules over time without; in each run the slowest rank counts."""
    by_rank = ranks.run(partial(pairs_on_a_rank, number))
    ruled, bare = ([max(of_ranks) for of_ranks in zip(*side, strict=True)] for side in zip(*by_rank, strict=True))
    return ratio_of(ruled, bare)


def main() -> None:
    rows = []
    for device, cases in (("cpu", range(5)), ("card", range(3))):
        with Ranks(2, device=device, rules="nccl", timeout=300, quiet=True) as ranks:
            for number in cases:
                found = ratio(ranks, number)
                times = {"rules (ms)": found.a_seconds * 1e3, "none (ms)": found.b_seconds * 1e3}
                goal = {"goal": f"at most {GOAL}" if number == 0 else ""}
                rows.append({"what": CASES[number][0], "device": device} | times | {"rules / none": found} | goal)
                print(*rows[-1].values(), flush=True)
    print(write_table("nccl_rules", rows, "python -m benchmarks.nccl_rules"))


if __name__ == "__main__":
    main()
