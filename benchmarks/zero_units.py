"""Times a training step of our Zero3 with 50, 200 and 400 units, next to FSDP2 with the same units.

    python -m benchmarks.zero_units

The layers are small, so most of a step is what both do per unit: hooks, collectives and the optimizer's loop. If the
work per unit is constant, the milliseconds per unit do not grow with the number of units. Both models train in the same
two processes, step by step in turn. CPU time is that of a rank's cheapest step, with all of its threads: other work on
the machine moves it less than it moves the clock.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from benchmarks.paired import ratio_of, write_table
from benchmarks.zero import one_step
from helpers.parallel.zero import Zero3
from helpers.ranks import Ranks

WIDTH, ROWS, NUM_RANKS = 64, 8, 2
UNITS, PAIRS, WARMUP = (50, 200, 400), 15, 2


def layers(num_units: int) -> nn.Sequential:
    """So many linear layers of 4,160 parameters. Each is a unit."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(num_units)))


def pairs_on_rank(num_units: int, num_pairs: int) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """On a rank: seconds of steps of (our Zero3, FSDP2) in pairs, and the CPU seconds of the cheapest step of each.

    Every second pair runs FSDP2 first.
    """
    theirs, mesh = layers(num_units), DeviceMesh.from_group(dist.group.WORLD, "cpu")
    for layer in theirs:
        fully_shard(layer, mesh=mesh)
    models = [Zero3(layers(num_units)), fully_shard(theirs, mesh=mesh)]
    # One optimizer step of SGD costs both about as much; AdamW would add its own work for each parameter.
    sides = [(model, torch.optim.SGD(model.parameters(), lr=1e-3)) for model in models]
    x, timed, worked = torch.randn(ROWS, WIDTH), [], []
    for index in range(WARMUP + num_pairs):
        seconds, cpu_seconds = [0.0, 0.0], [0.0, 0.0]
        for which in (0, 1) if index % 2 == 0 else (1, 0):
            start = time.process_time()
            seconds[which] = one_step(*sides[which], x)
            cpu_seconds[which] = time.process_time() - start
        timed.append(tuple(seconds))
        worked.append(cpu_seconds)
    ours, theirs = (min(steps) for steps in zip(*worked[WARMUP:], strict=True))
    return timed[WARMUP:], (ours, theirs)


def main(num_pairs: int = PAIRS) -> None:
    rows = []
    for num_units in UNITS:
        with Ranks(NUM_RANKS, device="cpu", quiet=True, timeout=600) as ranks:
            by_rank, worked = zip(*ranks.run(pairs_on_rank, num_units, num_pairs), strict=True)
        slowest = [tuple(map(max, zip(*pair, strict=True))) for pair in zip(*by_rank, strict=True)]
        ratio = ratio_of(*zip(*slowest, strict=True))
        ours, theirs = (f"{1e3 * max(seconds) / num_units:.2f}" for seconds in zip(*worked, strict=True))
        rows.append({
            "units": str(num_units), "our Zero3, ms per step": f"{ratio.a_seconds * 1e3:.0f}",
            "FSDP2, ms per step": f"{ratio.b_seconds * 1e3:.0f}", "our Zero3 / FSDP2": ratio,
            "our Zero3, CPU ms per unit": ours, "FSDP2, CPU ms per unit": theirs,
        })  # fmt: skip
        print(rows[-1], flush=True)
    print(write_table("zero_units", rows, "python -m benchmarks.zero_units"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
