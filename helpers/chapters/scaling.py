"""Runs chapter 11: speed-up on live ranks and on emulated cards, Amdahl's law, and the gradient noise scale.

Live ranks are processes that share this machine's cores: `Ranks(n)` is a pool of n, `ranks[:k]` its first k, and
`ranks.run(f)` calls f on each and returns the list of results. An emulated card is no device: ranks only wait as long
as a model says that a GPU would compute, and messages as long as a link would carry them. The runs of `live_speedup`
and `divided_steps` are not paced: their clocks run freely.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count

import torch
import torch.distributed as dist

from helpers.observe.emulate import emulate_ddp_step
from helpers.observe.stopwatch import seconds_of, seconds_of_steps
from helpers.parallel.ddp import DistributedDataParallel, FlatDDP
from helpers.predict.scaling import NoiseScale, Point, noise_scale
from helpers.predict.scaling.laws import points_of, words
from helpers.predict.time.data_parallel import gpt_backward, simulate_ddp_step
from helpers.ranks import Ranks
from helpers.ranks.live import keep_current
from helpers.records.checks import check_one_of
from helpers.specs import Link
from helpers.workloads import GPT, GPTConfig, characters, token_loss

WARMUP_STEPS, TIMED_LIVE_STEPS, TIMED_SPLIT_STEPS = 2, 5, 15
LIVE = GPTConfig(vocab_size=68, context=64, num_layers=2, num_heads=4, hidden=128)
# An emulated card: a GPU that is only a backward pass with modelled durations. It is about a T4 at 40 % of its peak,
# with 16,384 tokens of a GPT of 10.7 million parameters: 27 ms of backward.
CARD = gpt_backward(GPTConfig.ten_million().spec, tokens=16_384, flops_per_second=26e12)


@dataclass(frozen=True, kw_only=True, repr=False)
class Speedups:
    """Measured speed-ups, one `Point` per number of ranks.

    A Point has gpus, seconds of a step, samples per second, speedup and efficiency. predicted: speed-ups of the
    simulation, for emulated cards; live ranks have none. cores: how many cores the live ranks share.
    """

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
        lines = [  # `words` fills the sentence of a key with numbers, in the learner's language
            words("runs.row", n=one.gpus, seconds=one.seconds * 1e3, times=one.speedup, efficiency=one.efficiency)
            for one in self.points
        ]
        if self.predicted:
            pairs = zip(lines, self.predicted, strict=True)
            return "\n".join(line + words("runs.predicted", times=times) for line, times in pairs)
        key = "runs.share" if self.gpus[-1] > self.cores else "runs.own"  # whether each rank has a core of its own
        return "\n".join([*lines, words(key, n=self.gpus[-1], cores=self.cores)])


def live_speedup(
    ranks: Ranks | None = None, *, counts: Sequence[int] = (1, 2, 3, 4), batch: int = 24, kind: str = "strong"
) -> Speedups:
    """The speed-up of a small GPT under DDP on so many live ranks, which share this machine's cores.

    counts: the numbers of ranks. batch: sequences of a step that the ranks divide ("strong"), or of each rank ("weak").
    ranks: whose processes are used; new ones if None. The fastest of a few steps counts. Raises ValueError where a
    batch does not divide or there are too few ranks.
    """
    check_one_of("live_speedup", "kind", kind, ("strong", "weak"))
    are_rising = list(counts) == sorted(set(counts)) and min(counts) >= 1
    if not are_rising or (ranks and max(counts) > len(ranks)):
        raise ValueError(
            f"live_speedup: counts are {list(counts)}; give rising ones, at most as many as you have ranks"
        )
    global_batches = [batch if kind == "strong" else batch * n for n in counts]
    for n, size in zip(counts, global_batches, strict=True):
        if size % n:
            raise ValueError(f"live_speedup: {batch} sequences do not divide among {n} ranks; give a multiple of it")
    step_seconds = []
    # keep_current: the notebook's %%ranks cells go on with their own ranks, and not with these.
    with keep_current(), nullcontext(ranks) if ranks else Ranks(max(counts), device="cpu", quiet=True) as world:
        for n, size in zip(counts, global_batches, strict=True):
            by_rank = world[:n].run(_live_steps, size)
            # A step ends with its slowest rank. The fastest step counts, because a busy machine only ever adds time.
            step_seconds.append(min(max(step) for step in zip(*by_rank, strict=True)))
        cores = len(set().union(*world[: counts[-1]].run(_cores)))
    rates = [size / one for size, one in zip(global_batches, step_seconds, strict=True)]
    return Speedups(points=points_of(counts, rates, step_seconds), cores=cores)


def _cores() -> set[int]:
    """On a rank: the cores on which it may compute."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _live_steps(batch: int) -> list[float]:
    """On a rank: the seconds of forward and backward in each timed step."""
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(LIVE))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tokens, targets = characters().batch(0, batch, LIVE.context, rank=rank, world_size=world_size)

    def step() -> None:
        model.zero_grad()
        token_loss(model(tokens), targets).backward()

    return seconds_of_steps(step, WARMUP_STEPS + TIMED_LIVE_STEPS)[WARMUP_STEPS:]


def emulated_speedup(link: Link, *, counts: Sequence[int] = (1, 2, 4), kind: str = "weak") -> Speedups:
    """The speed-up of DDP on emulated cards and an emulated link, with the prediction of `simulate_ddp_step`.

    kind: with "strong" the cards divide the tokens of one card; with "weak" each has as many. One card waits for no
    message, so it is not emulated.
    """
    check_one_of("emulated_speedup", "kind", kind, ("strong", "weak"))
    rates, predicted, step_seconds = [], [], []  # rates: batches of one card per second
    for n in counts:
        part = 1 / n if kind == "strong" else 1.0  # of the card's tokens
        backward = tuple(one * part for one in CARD.seconds)
        card = replace(CARD, seconds=backward, forward_seconds=CARD.forward_seconds * part)
        simulated = simulate_ddp_step(card, link=link, world_size=n).duration
        emulated = emulate_ddp_step(card, link=link, world_size=n).duration if n > 1 else simulated
        step_seconds.append(emulated)
        rates.append(n * part / emulated)
        predicted.append(n * part / simulated)
    points = points_of(counts, rates, step_seconds)
    first = counts[0] / predicted[0]  # so that the speed-up of the first count is that count, as it is in `points`
    return Speedups(points=points, predicted=tuple(one * first for one in predicted))


def measure_noise_scale(
    ranks: Ranks | None = None, *, batch: int = 8, batches: int = 24, trained: Sequence[int] = (0, 60), seed: int = 0
) -> dict[int, NoiseScale]:
    """The gradient noise scale of a GPT of 28,672 parameters, after each of `trained` numbers of training steps.

    Each rank's gradient of `batch` sequences is that of the small batch, and their mean that of the large one, for
    `batches` batches. Raises ValueError for one rank alone.
    """
    if ranks is not None and len(ranks) < 2 or batch < 1 or batches < 1 or min(trained) < 0:
        raise ValueError("measure_noise_scale: give 2 ranks or more, and at least 1 sequence, 1 batch and 0 steps")
    with keep_current(), nullcontext(ranks) if ranks else Ranks(4, device="cpu", quiet=True) as world:
        small, large = batch, batch * len(world)
        by_rank = world.run(_gradient_norms, batch, batches, trained, seed)
    scales = {}
    for steps in sorted(trained):
        local = [norm for norms in by_rank for norm, _ in norms[steps]]
        scales[steps] = noise_scale(small, large, local, [norm for _, norm in by_rank[0][steps]])
    return scales


def _gradient_norms(
    batch: int, batches: int, trained: Sequence[int], seed: int
) -> dict[int, list[tuple[float, float]]]:
    """On a rank, at each of `trained`: the squared norms of its own gradients and of their mean over all ranks.

    Returns {number of training steps: one pair for each of `batches` batches}.
    """
    where = {"rank": dist.get_rank(), "world_size": dist.get_world_size(), "seed": seed}
    torch.manual_seed(seed)
    model, corpus, draws = FlatDDP(GPT(GPTConfig.tiny())), characters(), count()  # draws: the numbers of the batches
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def square() -> float:
        return sum(float(one.grad.double().square().sum()) for one in model.parameters())

    def norms() -> tuple[float, float]:
        optimizer.zero_grad()
        tokens, targets = corpus.batch(next(draws), batch * where["world_size"], 32, **where)
        token_loss(model(tokens), targets).backward()
        local = square()
        model.average_gradients()  # `FlatDDP` averages only when it is called, so the local ones were there before
        return local, square()

    by_steps, done = {}, 0
    for steps in sorted(trained):
        for _ in range(steps - done):
            norms()
            optimizer.step()
        done, by_steps[steps] = steps, [norms() for _ in range(batches)]
    return by_steps


# ---- steps of which only one part is divided among ranks: Amdahl's law on live ranks ----


def share_cores(ranks: Ranks, *, cores: int, counts: Sequence[int] = (1, 2, 4)) -> None:
    """From now on worlds of so many ranks compute on the same few cores, where the system allows it (Linux)."""
    if cores < 1:
        raise ValueError(f"share_cores: cores is {cores!r}; give at least 1")
    for num_ranks in counts:
        ranks[:num_ranks].run(_take_cores, cores)


def _take_cores(cores: int) -> int:
    """On a rank: use only the first `cores` of its cores. Returns how many it may use now."""
    if not hasattr(os, "sched_setaffinity"):
        return os.cpu_count() or 1
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, kw_only=True)
class SplitStep:
    """Seconds of the two parts of a step: what rank 0 does for all, and what the ranks divide."""

    serial: float
    divided: float

    @property
    def total(self) -> float:
        return self.serial + self.divided


def divided_steps(
    ranks: Ranks, *, counts: Sequence[int] = (1, 2), batch: int = 24, evaluated: int = 20
) -> dict[int, SplitStep]:
    """Number of ranks -> the fastest step of a few, on clocks that run freely.

    Rank 0 evaluates a small GPT on `evaluated` sequences, while the others wait for its broadcast. Then the ranks
    divide a training step on `batch` sequences, at whose end DDP has averaged the gradients. Evaluation has no
    backward, so with the defaults roughly a fifth of one rank's step is serial. ValueError for a batch that does not
    divide, and for nothing to evaluate.
    """
    if evaluated < 1 or batch < 1 or any(batch % n for n in counts):
        raise ValueError(
            f"divided_steps: {batch=} and {evaluated=}; give a batch that {list(counts)} ranks can divide, and 1 or "
            "more sequences to evaluate"
        )
    return {n: ranks[:n].run(_fastest_split_step, batch, evaluated)[0] for n in counts}


def _fastest_split_step(batch: int, evaluated: int) -> SplitStep:
    """On a rank: its fastest step. On rank 0 the two parts are what they took, as it never waits for the first one."""
    torch.manual_seed(0)
    model, loss = DistributedDataParallel(GPT(LIVE)), torch.zeros(1)
    tokens, targets = characters().batch(0, batch, LIVE.context, rank=dist.get_rank(), world_size=dist.get_world_size())
    held_out, expected = characters().batch(1, evaluated, LIVE.context)

    @torch.no_grad()
    def evaluate() -> None:
        if dist.get_rank() == 0:
            loss.fill_(token_loss(model.module(held_out), expected))
        dist.broadcast(loss, 0)

    def train() -> None:
        model.zero_grad()
        token_loss(model(tokens), targets).backward()

    steps = []
    for _ in range(WARMUP_STEPS + TIMED_SPLIT_STEPS):
        dist.barrier()
        steps.append(SplitStep(serial=seconds_of(evaluate), divided=seconds_of(train)))
    return min(steps[WARMUP_STEPS:], key=lambda step: step.total)
