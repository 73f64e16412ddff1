"""Runs chapter 11: speed-up on emulated cards, and the gradient noise scale on live ranks.

An emulated card is no device: ranks only wait as long as a model says that a GPU would compute, and messages as long as
a link would carry them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count

import torch
import torch.distributed as dist

from helpers.observe.emulate import emulate_ddp_step
from helpers.parallel.ddp import FlatDDP
from helpers.predict.scaling import NoiseScale, Point, noise_scale
from helpers.predict.scaling.laws import points_of, words
from helpers.predict.time.data_parallel import gpt_backward, simulate_ddp_step
from helpers.ranks import Ranks
from helpers.ranks.live import keep_current
from helpers.records.checks import check_one_of
from helpers.specs import Link
from helpers.workloads import GPT, GPTConfig, characters, token_loss

# An emulated card: a GPU that is only a backward pass with modelled durations. It is about a T4 at 40 % of its peak,
# with 16,384 tokens of a GPT of 10.7 million parameters: 27 ms of backward.
CARD = gpt_backward(GPTConfig.ten_million().spec, tokens=16_384, flops_per_second=26e12)


@dataclass(frozen=True, kw_only=True, repr=False)
class Speedups:
    """Emulated speed-ups, one `Point` per number of ranks.

    A Point has gpus, seconds of a step, samples per second, speedup and efficiency. predicted: speed-ups of the
    simulation.
    """

    points: tuple[Point, ...]
    predicted: tuple[float, ...]

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
        pairs = zip(lines, self.predicted, strict=True)
        return "\n".join(line + words("runs.predicted", times=times) for line, times in pairs)


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


def own_and_mean_norms(model: FlatDDP, loss: torch.Tensor) -> tuple[float, float]:
    """The squared norms of this rank's own gradient, and of the mean over all ranks."""
    loss.backward()  # `FlatDDP` sends nothing yet, so each rank has its own gradient
    own = squared_norm(model)
    model.average_gradients()  # the all-reduce
    return own, squared_norm(model)


def squared_norm(model: torch.nn.Module) -> float:
    """The squared norm of the gradients of all parameters."""
    return sum(float(one.grad.double().square().sum()) for one in model.parameters())


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

    def norms() -> tuple[float, float]:
        optimizer.zero_grad()
        tokens, targets = corpus.batch(next(draws), batch * where["world_size"], 32, **where)
        return own_and_mean_norms(model, token_loss(model(tokens), targets))

    by_steps, done = {}, 0
    for steps in sorted(trained):
        for _ in range(steps - done):
            norms()
            optimizer.step()
        done, by_steps[steps] = steps, [norms() for _ in range(batches)]
    return by_steps
