"""What overlap gains on an emulated 100 MB/s link, beside what the simulator predicts: `python -m benchmarks.overlap`.

Emulated: real ranks, messages and values; the wire delays each message as the link would, and each layer's compute is
paced to a modelled duration. Goal: the measured gain (time without overlap / time with it) within 15 % of predicted.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.paired import Ratio, ratio_of, write_table
from helpers.observe.paced import PacedLinear
from helpers.parallel.ddp import DistributedDataParallel
from helpers.predict.time.data_parallel import BackwardPass, simulate_ddp_step
from helpers.ranks import Ranks
from helpers.specs import Link

LINK = Link(latency=2e-4, bandwidth=100e6)
LAYERS, WIDTH, FORWARD = 8, 512, 0.005  # 1.05 MB of gradients a layer, seconds a layer
PAIRS, WARMUP, GOAL = 15, 2, 0.15
CASES = [(2, 0.005), (2, 0.012), (2, 0.030), (4, 0.012), (4, 0.030)]  # ranks, seconds of backward a layer


def build(backward_seconds: float) -> nn.Module:
    torch.manual_seed(0)
    pace = {"forward_seconds": FORWARD, "backward_seconds": backward_seconds}
    return nn.Sequential(*(PacedLinear(WIDTH, WIDTH, **pace) for _ in range(LAYERS)))


def pairs_on_a_rank(backward_seconds: float) -> tuple[list[float], list[float]]:
    """Seconds of a step without and with overlap on this rank, in interleaved pairs."""
    caps = {"bucket_cap_mb": 1, "first_bucket_mb": 1}  # one bucket a layer
    models = [DistributedDataParallel(build(backward_seconds), overlap=overlap, **caps) for overlap in (False, True)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(WARMUP + PAIRS):
        for which in (0, 1) if number % 2 else (1, 0):
            seconds[which].append(one_step(models[which]))
    return seconds[0][WARMUP:], seconds[1][WARMUP:]


def one_step(model: nn.Module) -> float:
    model.zero_grad()
    dist.barrier()
    start = time.perf_counter()
    model(torch.ones(2, WIDTH)).sum().backward()
    return time.perf_counter() - start


def measured(ranks: Ranks, backward_seconds: float) -> Ratio:
    """Time without overlap over time with it; in each step the slowest rank counts."""
    by_rank = ranks.run(pairs_on_a_rank, backward_seconds)
    return ratio_of(*([max(of_ranks) for of_ranks in zip(*side, strict=True)] for side in zip(*by_rank, strict=True)))


def predicted(num_ranks: int, backward_seconds: float) -> list[float]:
    """Seconds of a step without and with overlap, simulated."""
    backward = BackwardPass(
        names=tuple(f"layer {i}" for i in reversed(range(LAYERS))),
        num_bytes=(4 * WIDTH * (WIDTH + 1),) * LAYERS,
        seconds=(backward_seconds,) * LAYERS,
        forward_seconds=LAYERS * FORWARD,
    )
    options = {"link": LINK, "world_size": num_ranks, "bucket_cap_mb": 1}
    return [simulate_ddp_step(backward, strategy=s, **options).duration for s in ("bucketed", "overlapped")]


def main() -> None:
    rows = []
    for num_ranks, backward_seconds in CASES:
        with Ranks(num_ranks, device="cpu", link=LINK, quiet=True) as ranks:
            found, (without, overlapped) = measured(ranks, backward_seconds), predicted(num_ranks, backward_seconds)
        gain = without / overlapped
        row = {
            "ranks": num_ranks,
            "backward a layer (ms)": backward_seconds * 1e3,
            "without, predicted (ms)": without * 1e3,
            "without, emulated (ms)": found.a_seconds * 1e3,
            "overlapped, predicted (ms)": overlapped * 1e3,
            "overlapped, emulated (ms)": found.b_seconds * 1e3,
            "gain, predicted": gain,
            "gain, emulated": found,
            "emulated / predicted": found.median / gain,
            "goal (0.85 to 1.15)": "met" if abs(found.median / gain - 1) <= GOAL else "missed",
        }
        rows.append(row)
        print(row, flush=True)
    print(write_table("overlap", rows, "python -m benchmarks.overlap"))


if __name__ == "__main__":
    main()
