"""04.overflow: gradients are sharded, so one rank alone sees an overflow, and all have to skip. On 1 to 5 ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.amp import LAB
from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect
from helpers.grading.kit.stories import Story, alike, judge_story, named, number, overflow_notes, told_by
from helpers.grading.task import Finding, Task, Trial, Trouble, World

LEARNING_RATE = 0.1
FLAG = 256  # bytes a step that may carry the flag
SHAPES = ((16, 16), (16,))  # of one rank's shard, where they are alike: 256 bad numbers are 0 in a byte
BAD = ("inf", "nan", "-inf")
LARGE = torch.finfo(torch.float32).max ** 0.55  # its square is infinite in float32, not in float64


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Overflows on the last rank, on rank 0, on both, on all, and a NaN on each alone; at last numbers whose squares
    overflow. The last rank has another number of overflows than rank 0, so that a rank which asks only when it has
    found one waits for ever, at the latest in the end."""
    last, everybody = world_size - 1, list(range(world_size))
    plan = [[], [last], [], [0], sorted({0, last}), [], everybody, [last], *([rank] for rank in everybody), []]
    kinds = [rng.one_of(*BAD) for _ in plan[: -world_size - 1]] + ["nan"] * (world_size + 1)
    scale, inputs = 2.0 ** rng.integer(8, 14), []
    for rank in range(world_size):
        shapes = drawn_shapes(rng, rank, world_size)
        steps = [[rng.tensor(*shape) for shape in shapes] for _ in plan]
        for step, where, kind in zip(steps, plan, kinds, strict=True):
            if where is everybody and shapes:
                step[0].fill_(float(kind))
            elif rank in where and shapes:
                gradient = step[rng.integer(0, len(shapes) - 1)]
                gradient[(rng.one_of(0, -1),) * gradient.dim()] = float(kind)
        steps[-1] = [gradient * LARGE for gradient in steps[-1]]
        inputs.append({"weights": [rng.tensor(*shape) for shape in shapes], "steps": steps, "scale": scale})
    return inputs


def drawn_shapes(rng: Draw, rank: int, world_size: int) -> list[tuple[int, ...]]:
    """More than FLAG bytes each; where they are unequal the last rank's shard is empty."""
    if rng.case.sizes == "alike":
        return list(SHAPES)
    if 0 < rank == world_size - 1:
        return []
    return [(rng.integer(9, 12), 10) for _ in range(rng.integer(1, 3))]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Generator[None, None, Story | str]:
    parameters = [nn.Parameter(tensor.clone()) for tensor in inputs["weights"]]
    optimizer, scale, story = making.Descent(parameters, LEARNING_RATE), inputs["scale"], []
    for gradients in inputs["steps"]:
        yield
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = (gradient * scale).to(gradient.dtype)
        scale = submitted(optimizer, list(parameters), scale)
        if scale is None:
            return "None"
        story.append({"scale": number(scale)} | named("weights", parameters))
    return story


# -- all ranks on paper: the right one, and each known mistake -------------------------------------------------------
Flags = Sequence[bool]  # of each rank: whether its own shard overflowed
Decision = Callable[[Flags, int], bool]  # what a rank makes of them


def overflowed(shard: Sequence[Tensor]) -> bool:
    return not all(bool(part.isfinite().all()) for part in shard)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """The task's answer with one mistake; none if all stays as it is."""

    skips: Decision = lambda flags, rank: any(flags)
    backs_off: Decision = lambda flags, rank: any(flags)
    sees: Callable[[Sequence[Tensor]], bool] = overflowed
    averages_scale: bool = False
    unscales: bool = True
    backoff: float = 0.5

    def play(self, inputs: Sequence[dict[str, Any]]) -> list[Story]:
        """The story of each rank."""
        weights = [[tensor.clone() for tensor in one["weights"]] for one in inputs]
        scales, stories = [one["scale"] for one in inputs], [[] for _ in inputs]
        for step in range(len(inputs[0]["steps"])):
            shards = [one["steps"][step] for one in inputs]
            flags = [self.sees(shard) for shard in shards]
            for rank, shard in enumerate(shards):
                if not self.skips(flags, rank):
                    self._move(weights[rank], shard, scales[rank])
            scales = self._scales(scales, flags)
            for rank, story in enumerate(stories):
                story.append({"scale": scales[rank]} | named("weights", weights[rank]))
        return stories

    def _move(self, weights: list[Tensor], shard: Sequence[Tensor], scale: float) -> None:
        for weight, gradient in zip(weights, shard, strict=True):
            weight -= LEARNING_RATE * (gradient if self.unscales else gradient * scale)

    def _scales(self, scales: Sequence[float], flags: Flags) -> list[float]:
        new = [s * (self.backoff if self.backs_off(flags, rank) else 1.0) for rank, s in enumerate(scales)]
        return [sum(new) / len(new)] * len(new) if self.averages_scale else new


def own(flags: Flags, rank: int) -> bool:
    return flags[rank]


def everybody(flags: Flags, rank: int) -> bool:
    return all(flags)


def nobody(flags: Flags, rank: int) -> bool:
    return False


def exactly_one(flags: Flags, rank: int) -> bool:
    return sum(flags) == 1


def rank_0(flags: Flags, rank: int) -> bool:
    return flags[0]


PLANTED = {
    "flag_not_reduced": [Planted(skips=own, backs_off=own)],
    "all_must_find": [Planted(skips=everybody, backs_off=everybody)],
    "sum_equals_one": [Planted(skips=exactly_one, backs_off=exactly_one)],
    "rank_0_decides": [Planted(skips=rank_0, backs_off=rank_0)],
    "steps_before_asking": [Planted(skips=own)],
    "backs_off_alone": [Planted(backs_off=own)],
    "scale_averaged": [
        Planted(skips=own, backs_off=own, averages_scale=True),
        Planted(backs_off=own, averages_scale=True),
    ],
    "never_skips": [Planted(skips=nobody)],
    "never_backs_off": [Planted(backs_off=nobody)],
    "not_unscaled": [Planted(unscales=False)],
    "squares_overflow": [Planted(sees=lambda shard: overflowed([part.square().sum() for part in shard]))],
}


def judge(world: World) -> Iterator[Finding]:
    right, explain = Planted().play(world.inputs), functools.cache(functools.partial(explanations, world))
    steps = zip(*(one["steps"] for one in world.inputs), strict=True)
    notes = overflow_notes([[rank for rank, shard in enumerate(shards) if overflowed(shard)] for shards in steps])
    for rank, got in enumerate(world.outputs):
        sent, returned = world.logs[rank].payload_bytes(), got != "None"
        yield expect(
            returned,
            "it returns None, expected a scale",
            "返回了 None，应返回 scale",
            rank=rank,
            mistakes=["nothing_returned"],
        )
        yield expect(
            sent <= FLAG * len(right[rank]),
            f"it sends {sent:,} bytes in {len(right[rank])} steps; a flag needs a few each",
            f"{len(right[rank])} 步共传输 {sent:,} 字节；标志每步只需几个字节",
            rank=rank,
            mistakes=["gradients_sent"],
        )
        if returned:
            known = functools.partial(of_rank, rank, explain)
            yield from judge_story(right[rank], got, known, notes=notes, rank=rank)


def of_rank(rank: int, explain: Callable[[], dict[str, list[Story]]]) -> dict[str, list[Story]]:
    """What the mistakes that explain every rank tell of this one."""
    return {key: [stories[rank]] for key, stories in explain().items()}


def explanations(world: World) -> dict[str, list[Story]]:
    """Mistakes that tell the story of every rank."""
    found = {}
    for key, several in told_by(lambda one: one.play(world.inputs), PLANTED)().items():
        for stories in several:
            if all(alike(*pair) for pair in zip(stories, world.outputs, strict=True)):
                found[key] = stories
    return found


def recognise(trouble: Trouble) -> list[str]:
    """Gradients of unequal shards do not fit either; that they are sent shows on one rank already."""
    return ["asks_only_when_found", "gradients_sent"] if trouble.kind in ("hang", "mismatch") else []


OVERFLOW = Task(
    key="04.overflow",
    signature="step_together(optimizer, parameters, scale)",
    make=make,
    act=act,
    judge=judge,
    recognise=recognise,
    hints=LAB.hints(*PLANTED, "asks_only_when_found", "gradients_sent", "nothing_returned"),
    axes=Axes(sizes=("alike", "unequal"), dtypes=("float32", "float64")),
)
