"""What chapter 11 runs: speed-up on live ranks, on emulated cards and links, and the gradient noise scale of a GPT.

Steps of which one part is divided among ranks and another is not, on emulated cards: what Amdahl's law says, lived.

Rank 0 does the part that nobody can share, as one process that reads a file for all; the others wait for its broadcast.
Then each computes its part, and an all-reduce ends the step. Processes and messages are real, durations are paced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count

import torch
import torch.distributed as dist

from helpers.chapters.data_parallel import seconds
from helpers.observe.emulate import emulate_ddp_step
from helpers.observe.paced import wait_until
from helpers.parallel.ddp import DistributedDataParallel, FlatDDP
from helpers.predict.scaling import NoiseScale, Point, noise_scale
from helpers.predict.scaling.laws import points_of, words
from helpers.predict.time.data_parallel import gpt_backward, simulate_ddp_step
from helpers.ranks import Ranks
from helpers.ranks.live import keep_current
from helpers.records.checks import check_one_of
from helpers.specs import Link
from helpers.workloads import GPT, GPTConfig, characters, token_loss

STEPS = 5  # that are timed
LIVE = GPTConfig(vocab_size=68, context=64, num_layers=2, num_heads=4, hidden=128)
# An emulated card, about a T4 at 40 %, with 16,384 tokens of a GPT of 10.7 million parameters: 27 ms of backward.
CARD = gpt_backward(GPTConfig.ten_million().spec, tokens=16_384, flops_per_second=26e12)


@dataclass(frozen=True, kw_only=True, repr=False)
class Speedups:
    """points: measured, ranks as GPUs. predicted: speed-ups, none of live ranks, which share `cores` cores."""

    points: tuple[Point, ...]
    predicted: tuple[float, ...] = ()
    cores: int = 0

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(point.gpus for point in self.points)

    @property
    def speedups(self) -> tuple[float, ...]:
        return tuple(point.speedup for point in self.points)

    def __repr__(self) -> str:
        lines = [
            words("runs.row", n=one.gpus, seconds=one.seconds * 1e3, times=one.speedup, efficiency=one.efficiency)
            + (words("runs.predicted", times=self.predicted[place]) if self.predicted else "")
            for place, one in enumerate(self.points)
        ]
        most = self.gpus[-1]
        live = [words("runs.share" if most > self.cores else "runs.own", n=most, cores=self.cores)]
        return "\n".join(lines + live * (not self.predicted))


def live_speedup(
    ranks: Ranks | None = None, *, counts: Sequence[int] = (1, 2, 3, 4), batch: int = 24, kind: str = "strong"
) -> Speedups:
    """A small GPT under DDP on so many live ranks, on this machine's cores; the fastest of a few steps.

    batch: sequences of a step, shared out ("strong"), or of each rank ("weak"). ranks: from whose processes the worlds
    are taken; own ones without. ValueError where a batch does not divide or there are too few ranks.
    """
    check_one_of("live_speedup", "kind", kind, ("strong", "weak"))
    if list(counts) != sorted(set(counts)) or min(counts) < 1 or (ranks and max(counts) > len(ranks)):
        raise ValueError(
            f"live_speedup: counts are {list(counts)}; give rising ones, at most as many as you have ranks"
        )
    wholes = [batch if kind == "strong" else batch * n for n in counts]
    if odd := [n for n, whole in zip(counts, wholes, strict=True) if whole % n]:
        raise ValueError(f"live_speedup: {batch} sequences do not divide among {odd[0]} ranks; give a multiple of it")
    took = []
    with keep_current(), nullcontext(ranks) if ranks else Ranks(max(counts), device="cpu", quiet=True) as world:
        for n, whole in zip(counts, wholes, strict=True):
            by_rank = world[:n].run(_live_steps, whole)
            took.append(min(max(step) for step in zip(*by_rank, strict=True)))  # a step ends with its slowest rank
        cores = len(set().union(*world[: counts[-1]].run(_cores)))
    rates = [whole / one for whole, one in zip(wholes, took, strict=True)]
    return Speedups(points=points_of(counts, rates, took), cores=cores)


def _cores() -> set[int]:
    """On a rank: those that it may compute on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _live_steps(batch: int) -> list[float]:
    """On a rank: seconds of forward and backward, after two steps to warm up."""
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(LIVE))
    mine = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    tokens, targets = characters().batch(0, batch, LIVE.context, **mine)

    def step() -> None:
        model.zero_grad()
        token_loss(model(tokens), targets).backward()

    took = []
    for _ in range(STEPS + 2):
        dist.barrier()
        took.append(seconds(step))
    return took[2:]


def emulated_speedup(link: Link, *, counts: Sequence[int] = (1, 2, 4), kind: str = "weak") -> Speedups:
    """DDP with overlap on emulated cards and an emulated link, measured beside `simulate_ddp_step`.

    "strong": the tokens of one card are shared out among all. One card has nobody to wait for: it is not played.
    """
    check_one_of("emulated_speedup", "kind", kind, ("strong", "weak"))
    rates, predicted, took = [], [], []
    for n in counts:
        part = 1 / n if kind == "strong" else 1.0
        backward = tuple(one * part for one in CARD.seconds)
        card = replace(CARD, seconds=backward, forward_seconds=CARD.forward_seconds * part)
        said = simulate_ddp_step(card, link=link, world_size=n).duration
        with keep_current():
            took.append(emulate_ddp_step(card, link=link, world_size=n).duration if n > 1 else said)
        rates.append(n * part / took[-1])
        predicted.append(n * part / said)
    points = points_of(counts, rates, took)
    first = counts[0] / predicted[0]
    return Speedups(points=points, predicted=tuple(one * first for one in predicted))


def measure_noise_scale(
    ranks: Ranks | None = None, *, batch: int = 8, batches: int = 24, trained: Sequence[int] = (0, 60), seed: int = 0
) -> dict[int, NoiseScale]:
    """Of a GPT of 28,672 parameters, after so many steps of training: each rank's gradient of `batch` sequences is the

    small batch and their mean the large one, of `batches` batches. ValueError for one rank alone.
    """
    if ranks is not None and len(ranks) < 2 or batch < 1 or batches < 1 or min(trained) < 0:
        raise ValueError("measure_noise_scale: give 2 ranks or more, and at least 1 sequence, 1 batch and 0 steps")
    with keep_current(), nullcontext(ranks) if ranks else Ranks(4, device="cpu", quiet=True) as world:
        small, large = batch, batch * len(world)
        found = world.run(_gradient_norms, batch, batches, trained, seed)
    scales = {}
    for steps in sorted(trained):
        own = [one for norms in found for one, _ in norms[steps]]
        scales[steps] = noise_scale(small, large, own, [whole for _, whole in found[0][steps]])
    return scales


def _gradient_norms(
    batch: int, batches: int, trained: Sequence[int], seed: int
) -> dict[int, list[tuple[float, float]]]:
    """On a rank, at each of `trained`: the squared norms of its own gradients and of their mean over all ranks."""
    place = {"rank": dist.get_rank(), "world_size": dist.get_world_size(), "seed": seed}
    torch.manual_seed(seed)
    model, corpus, draws = FlatDDP(GPT(GPTConfig.tiny())), characters(), count()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def square() -> float:
        return sum(float(one.grad.double().square().sum()) for one in model.parameters())

    def norms() -> tuple[float, float]:
        optimizer.zero_grad()
        tokens, targets = corpus.batch(next(draws), batch * place["world_size"], 32, **place)
        token_loss(model(tokens), targets).backward()
        own = square()
        model.average_gradients()
        return own, square()

    found, done = {}, 0
    for steps in sorted(trained):
        for _ in range(steps - done):
            norms()
            optimizer.step()
        done, found[steps] = steps, [norms() for _ in range(batches)]
    return found


TIMED_STEPS = 3


def share_cores(ranks: Ranks, *, cores: int, counts: Sequence[int] = (1, 2, 4)) -> None:
    """The worlds of so many ranks compute on the same few cores from now on, where the system can say so (Linux)."""
    if cores < 1:
        raise ValueError(f"share_cores: cores is {cores!r}; give at least 1")
    for count in counts:
        ranks[:count].run(_take_cores, cores)


def _take_cores(cores: int) -> int:
    """On a rank: how many of its cores it may use now."""
    if not hasattr(os, "sched_setaffinity"):
        return os.cpu_count() or 1
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    return len(os.sched_getaffinity(0))


def divided_steps(
    ranks: Ranks, *, divided: float, serial: float, counts: Sequence[int] = (1, 2, 4), grows: bool = False
) -> dict[int, float]:
    """Number of ranks -> seconds of a step, the fastest of three. `divided` seconds of work are shared among all, or
    (grows: weak scaling) given to each whole; `serial` seconds are done by rank 0 alone. ValueError for no time at all.
    """
    if min(divided, serial) < 0 or not divided + serial > 0:
        raise ValueError(f"divided_steps: {divided=} and {serial=}; give seconds, and at least one above 0")
    shares = {count: divided if grows else divided / count for count in counts}
    return {count: max(ranks[:count].run(_fastest, own, serial)) for count, own in shares.items()}


def _fastest(own: float, serial: float) -> float:
    """Seconds of the fastest step on this rank, from a barrier to the end of the all-reduce."""
    message, took = torch.ones(1), []
    for _ in range(TIMED_STEPS):
        dist.barrier()
        start = time.perf_counter()
        if dist.get_rank() == 0:
            wait_until(start + serial)
        dist.broadcast(message, 0)
        wait_until(time.perf_counter() + own)
        dist.all_reduce(message)
        took.append(time.perf_counter() - start)
    return min(took)
