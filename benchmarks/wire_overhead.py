"""What the wire costs: a DDP step on it against the same step on bare gloo: `python -m benchmarks.wire_overhead`.

Goal: at most 1.05 with 25 MB buckets, the dial off and the check on. Both groups live in the same ranks, and the
steps alternate, so that both meet the same machine. Two copies of one step differ by several percent, depending on
which was made first; so they are made anew several times, in turn, and the last row compares gloo with gloo: what
differs there is the noise of this table. Small operations show where the wire does cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.paired import Ratio, ratio_of, write_table
from helpers.ranks import Ranks

GOAL = 1.05
PAIRS, REMADE, WARMUP = 30, 6, 2  # pairs in all; how often both are made anew; unmeasured pairs each time
SIZES = (1024, 2048, 2048, 2048, 2048, 2048, 1024)  # 21 million parameters, 84 MB of gradients


def mlp() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for a, b in zip(SIZES, SIZES[1:], strict=False) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def ddp_step(group: dist.ProcessGroup, bucket_mb: float) -> Callable[[], object]:
    model = DistributedDataParallel(mlp(), process_group=group, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, SIZES[0])

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def all_reduce(group: dist.ProcessGroup, num_bytes: float) -> Callable[[], object]:
    x = torch.ones(int(num_bytes // 4))
    return lambda: dist.all_reduce(x, group=group)


def ping_pong(group: dist.ProcessGroup, num_bytes: float) -> Callable[[], object]:
    x, first = torch.ones(int(num_bytes // 4)), dist.get_rank() == 0

    def there_and_back() -> None:
        if dist.get_rank() < 2:
            for sends in (first, not first):
                (dist.send if sends else dist.recv)(x, int(first), group=group)

    return there_and_back


CASES = [
    ("DDP step, 21 M parameters, 25 MB buckets", ddp_step, 25, 1),
    ("DDP step, 21 M parameters, 1 MB buckets", ddp_step, 1, 1),
    ("all_reduce of 25 MB", all_reduce, 25e6, 2),
    ("all_reduce of 4 kB", all_reduce, 4e3, 50),
    ("send 1 MB there and back", ping_pong, 1e6, 10),
    ("send 4 kB there and back", ping_pong, 4e3, 50),
    ("gloo against gloo: DDP step, 25 MB buckets", ddp_step, 25, 1),
]


def pairs_on_a_rank(number: int) -> tuple[list[float], list[float]]:
    """Seconds on the wire and on bare gloo, in interleaved pairs."""
    name, make, size, repeats = CASES[number]
    bare, other = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
    groups = [other if name.startswith("gloo") else dist.group.WORLD, bare]
    seconds: tuple[list[float], list[float]] = ([], [])
    for made in range(REMADE):
        both = dict.fromkeys((0, 1) if made % 2 else (1, 0))
        for which in both:
            both[which] = make(groups[which], size)
        for pair in range(WARMUP + PAIRS // REMADE):
            for which in (0, 1) if pair % 2 else (1, 0):
                taken = timed(both[which], repeats, bare)
                seconds[which].extend([taken] if pair >= WARMUP else [])
    dist.barrier(group=bare)
    return seconds


def timed(step: Callable[[], object], repeats: int, meet: dist.ProcessGroup) -> float:
    dist.barrier(group=meet)
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def ratio(ranks: Ranks, number: int) -> Ratio:
    """Time on the wire over time on gloo; in each run the slowest rank counts."""
    by_rank = ranks.run(pairs_on_a_rank, number)
    wire, gloo = ([max(of_ranks) for of_ranks in zip(*side, strict=True)] for side in zip(*by_rank, strict=True))
    return ratio_of(wire, gloo)


def row(num_ranks: int, number: int, found: Ratio) -> dict[str, object]:
    return {
        "what": CASES[number][0],
        "ranks": num_ranks,
        "wire (ms)": found.a_seconds * 1e3,
        "gloo (ms)": found.b_seconds * 1e3,
        "wire / gloo": found,
        "goal": f"at most {GOAL}" if number == 0 else "",
    }


def main() -> None:
    rows = []
    for num_ranks in (2, 4):
        with Ranks(num_ranks, device="cpu", timeout=300, quiet=True) as ranks:
            for number in range(len(CASES)):
                rows.append(row(num_ranks, number, ratio(ranks, number)))
                print(*rows[-1].values(), flush=True)
    print(write_table("wire_overhead", rows, "python -m benchmarks.wire_overhead"))


if __name__ == "__main__":
    main()
