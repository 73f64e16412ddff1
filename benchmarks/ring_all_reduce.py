"""Our all-reduce algorithms against gloo's own, on live ranks: `python -m benchmarks.ring_all_reduce`.

Goal: the ring on 16 MB and 4 ranks takes at most 1.5 times as long as gloo's all_reduce. Both run on the same wire, and
both are also run with its checks off, since ours hands the wire 12 messages where gloo hands it one operation.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from benchmarks.paired import Ratio, ratio_of, write_table
from helpers.collectives import ALL_REDUCE
from helpers.ranks import Ranks

GOAL = 1.5
PAIRS, WARMUP = 25, 3
CASES = [("ring", 16e6), ("halving_doubling", 16e6), ("tree", 16e6), ("ring", 1e6), ("ring", 4e3), ("tree", 4e3)]


def pairs_on_a_rank(algorithm: str, num_bytes: float) -> tuple[list[float], list[float]]:
    """Seconds of ours and of gloo's on this rank, in interleaved pairs; every second pair runs gloo's first."""
    x = torch.ones(int(num_bytes // 4))
    both = [ALL_REDUCE[algorithm], dist.all_reduce]
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(WARMUP + PAIRS):
        for which in (0, 1) if number % 2 else (1, 0):
            seconds[which].append(once(both[which], x))
    return seconds[0][WARMUP:], seconds[1][WARMUP:]


def once(reduce, x: torch.Tensor) -> float:
    x.fill_(1.0)
    dist.barrier()
    start = time.perf_counter()
    reduce(x)
    return time.perf_counter() - start


def ratio(ranks: Ranks, algorithm: str, num_bytes: float) -> Ratio:
    """Time of our algorithm over gloo's; in each run the slowest rank counts."""
    by_rank = ranks.run(pairs_on_a_rank, algorithm, num_bytes)
    ours, gloo = ([max(of_ranks) for of_ranks in zip(*side, strict=True)] for side in zip(*by_rank, strict=True))
    return ratio_of(ours, gloo)


def main() -> None:
    rows = []
    for num_ranks, check in ((4, True), (4, False), (2, True)):
        with Ranks(num_ranks, device="cpu", check=check, quiet=True) as ranks:
            for algorithm, num_bytes in CASES:
                found = ratio(ranks, algorithm, num_bytes)
                print(f"{num_ranks} ranks, check {check}, {algorithm}, {num_bytes / 1e6:g} MB: {found}", flush=True)
                rows.append(row(num_ranks, check, algorithm, num_bytes, found))
    print(write_table("ring_all_reduce", rows, "python -m benchmarks.ring_all_reduce"))


def row(num_ranks: int, check: bool, algorithm: str, num_bytes: float, found: Ratio) -> dict[str, object]:
    has_goal = (num_ranks, check, algorithm, num_bytes) == (4, True, "ring", 16e6)
    return {
        "ranks": num_ranks,
        "the wire's check": "on" if check else "off",
        "our algorithm": algorithm,
        "size (MB)": f"{num_bytes / 1e6:g}",
        "ours (ms)": found.a_seconds * 1e3,
        "gloo (ms)": found.b_seconds * 1e3,
        "ours / gloo": found,
        "goal": f"at most {GOAL}" if has_goal else "",
    }


if __name__ == "__main__":
    main()
