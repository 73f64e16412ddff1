"""08.stage1: the optimizer's state in shards. Gradients are reduce-scattered, updated parameters all-gathered.

The check's optimizer has momentum: a sum taken for a mean shows in it, which Adam would hide.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.drawing import Axes, Draw, laid_out
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_ops, expect_payload, is_silent
from helpers.grading.kit.stories import Story, judge_story, told_by
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.grading.zero import LAB
from helpers.grading.zero.parts import (
    expect_messages,
    flat_of,
    is_unpadded,
    length_of,
    misplaced,
    padded_bytes,
    shard_of,
    shards_of,
)

NUM_STEPS = 3


class Momentum(making.Descent):
    """Descent with momentum: a buffer as large as each tensor that it is given, from its first step on."""

    def __init__(self, parameters: Any, lr: float, momentum: float):
        super().__init__(parameters, lr)
        self.momentum, self.buffers = momentum, {}

    @torch.no_grad()
    def step(self) -> None:
        """buffer = momentum * buffer + gradient; parameter -= lr * buffer."""
        for i, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                before = self.buffers.get(i, torch.zeros_like(parameter.grad))
                self.buffers[i] = self.momentum * before + parameter.grad
                parameter -= self.lr * self.buffers[i]

    @property
    def num_elements(self) -> int:
        """Numbers that it keeps between steps."""
        return sum(buffer.numel() for buffer in self.buffers.values())


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Parameters of any dimension, whose numbers the ranks divide or not, or are fewer than the ranks.

    Far from 0, so that no step cancels one in float32. Matrices lie transposed in memory but in the plain case.
    """
    layout = "transposed" if rng.case.number else "contiguous"
    shapes = shapes_of(rng, world_size)
    constants = {"lr": rng.one_of(0.05, 0.1, 0.3), "momentum": rng.one_of(0.5, 0.8, 0.9)}
    weights = [laid_out(10 + rng.tensor(*shape), layout) for shape in shapes]
    steps = [[[rng.tensor(*shape) for shape in shapes] for _ in range(NUM_STEPS)] for _ in range(world_size)]
    return [{"weights": weights, "steps": own} | constants for own in steps]


def shapes_of(rng: Draw, world_size: int) -> list[tuple[int, ...]]:
    """The last one makes the sum what the case says."""
    if rng.case.sizes == "few":
        return [(1,)] * rng.size(world_size)
    a, b = rng.integer(2, 4), rng.integer(3, 6)
    shapes: list[tuple[int, ...]] = [(a, b), (b,), (), (2, a, 2)]
    missing = (rng.size(world_size) - sum(map(math.prod, shapes))) % world_size
    return [*shapes, (missing + world_size,)]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Iterator[None]:
    parameters, made, story = [nn.Parameter(one.clone()) for one in inputs["weights"]], [], []

    def make_optimizer(tensors: Any) -> Momentum:
        made.append(Momentum(tensors, inputs["lr"], inputs["momentum"]))
        return made[-1]

    given = list(parameters)
    sharded = submitted(given, make_optimizer)
    for gradients in inputs["steps"]:
        yield
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        sharded.step()
        story.append({f"parameter {i}": parameter.detach().clone() for i, parameter in enumerate(parameters)})
    is_same = len(given) == len(parameters) and all(map(operator.is_, given, parameters))
    kept = is_same and all(one.requires_grad and one.is_leaf for one in parameters)
    return {"story": story, "held": made[-1].num_elements if made else 0, "made": len(made), "kept": kept}


# -- all ranks in one process, with one mistake or none --------------------------------------------------------------
@dataclass(kw_only=True)
class Planted:
    """The task's answer as it runs on every rank. `stories(world)`: what each rank's parameters are after each step."""

    divided: float | None = None  # by what the sum of gradients is divided; None: the number of ranks
    reduced: bool = True
    begins: int | None = None  # which of the `misplaced` shards is updated
    gathered: str = "all"  # "own": the others' shards never come; "none": the parameters stay
    anew: bool = False  # the optimizer is made at every step
    added_up: bool = False  # the shard's gradient is never cleared

    def stories(self, world: World) -> list[Story]:
        n = world.size
        weights, lr, momentum = (world.inputs[0][name] for name in ("weights", "lr", "momentum"))
        flats = [flat_of(weights)] * n
        place = shard_of if self.begins is None else lambda *args: misplaced(*args)[self.begins]
        masters = [place(flats[0], rank, n).clone() for rank in range(n)]
        buffers, grads = [torch.zeros_like(one) for one in masters], [torch.zeros_like(one) for one in masters]
        told: list[list[dict[str, Tensor]]] = [[] for _ in range(n)]
        for step in range(NUM_STEPS):
            own = [flat_of(one["steps"][step]) for one in world.inputs]
            mean = sum(own) / (n if self.divided is None else self.divided)
            for rank in range(n):
                part = shard_of(mean if self.reduced else own[rank], rank, n)
                grads[rank] = part + self.added_up * grads[rank]
                buffers[rank] = (0.0 if self.anew else momentum) * buffers[rank] + grads[rank]
                masters[rank] = masters[rank] - lr * buffers[rank]
            flats = [self._after(flats[rank], masters, rank) for rank in range(n)]
            for rank in range(n):
                told[rank].append(named_as(weights, flats[rank]))
        return told

    def _after(self, flat: Tensor, masters: list[Tensor], rank: int) -> Tensor:
        """What a rank's parameters are once it has gathered, as one line."""
        kept = shards_of(flat, len(masters))
        come = {"all": masters, "none": kept, "own": [*kept[:rank], masters[rank], *kept[rank + 1 :]]}
        return torch.cat(come[self.gathered])[: flat.numel()]


def named_as(weights: Sequence[Tensor], flat: Tensor) -> dict[str, Tensor]:
    """The line as parameters again, as a step of a story."""
    pieces = flat.split([tensor.numel() for tensor in weights])
    pairs = enumerate(zip(weights, pieces, strict=True))
    return {f"parameter {i}": piece.view(tensor.shape) for i, (tensor, piece) in pairs}


def planted(world_size: int) -> dict[str, list[Planted]]:
    return {
        "gather_forgotten": [Planted(gathered="own")],
        "not_copied_back": [Planted(gathered="none")],
        "sum_for_mean": [Planted(divided=1)],
        "divided_twice": [Planted(divided=world_size**2)],
        "own_gradient": [Planted(reduced=False)],
        "wrong_place": [Planted(begins=i) for i in range(4)],
        "optimizer_made_anew": [Planted(anew=True)],
        "gradient_added_up": [Planted(added_up=True)],
    }


def judge(world: World) -> Iterator[Finding]:
    n, num_elements = world.size, flat_of(world.inputs[0]["weights"]).numel()
    right = Planted().stories(world)
    told: dict[str, list[list[Story]]] = {}
    for rank, output in enumerate(world.outputs):
        known = {key: ways for key, ways in planted(n).items() if key != "not_copied_back" or output["held"]}
        wrong = told_by(lambda one, rank=rank: stories_of(told, one, world)[rank], known)
        yield from judge_story(right[rank], output["story"], wrong, rank=rank)
        yield judge_state(output["held"], num_elements, n, rank)
        yield from judge_care(output, rank)
    if not is_silent(world):
        yield from judge_messages(world, num_elements)


def judge_care(output: Mapping[str, Any], rank: int) -> Iterator[Finding]:
    """One optimizer; the caller's list and Parameters are what they were."""
    made = output["made"]
    yield expect(
        made <= 1,
        f"make_optimizer is called {made} times, expected once",
        f"make_optimizer 调用了 {made} 次，应为一次",
        rank=rank,
        mistakes=["optimizer_made_anew"],
    )
    yield expect(
        output["kept"],
        "the list of parameters is another, or they are no leaves that want a gradient any more",
        "parameters 列表被改动，或者其中的参数不再是需要梯度的叶子张量",
        rank=rank,
    )


def judge_messages(world: World, num_elements: int) -> Iterator[Finding]:
    """One of each kind a step."""
    yield from expect_messages(world)
    total = padded_bytes([num_elements], world.size, world.inputs[0]["weights"][0].element_size())
    is_reduced = any(log.count("all_reduce") for log in world.logs)
    for op, num_bytes, alone in (
        ("reduce_scatter", total, "own_gradient"),
        ("all_gather", total // world.size, "gather_forgotten"),
    ):
        yield from expect_ops(world, op, NUM_STEPS, mistakes={} if is_reduced else {alone: 0})
        if all(log.count(op) == NUM_STEPS for log in world.logs):
            yield from expect_payload(world, NUM_STEPS * num_bytes, op)


def stories_of(told: dict[str, list[list[Story]]], one: Planted, world: World) -> list[Story]:
    """Of all ranks, played once."""
    if repr(one) not in told:
        told[repr(one)] = one.stories(world)
    return told[repr(one)]


def judge_state(held: int, num_elements: int, world_size: int, rank: int) -> Finding:
    """Numbers in the optimizer's state: a shard, or less where the line ends."""
    most = length_of(num_elements, world_size)
    least = max(0, min(most, num_elements - rank * most))
    known = {num_elements: "whole_state", most * world_size: "whole_state", 0: "no_optimizer"}
    return expect(
        least <= held <= most,
        f"the optimizer keeps a state for {held} numbers, expected {most} of {num_elements}",
        f"optimizer 为 {held} 个数保存状态，应为 {num_elements} 个中的 {most} 个",
        rank=rank,
        mistakes=[known[held]] if held in known else [],
    )


def recognise(trouble: Trouble) -> list[str]:
    if is_unpadded(trouble):
        return ["not_padded"]
    return ["no_grad_forgotten"] if "in-place operation" in trouble.text else []


STAGE_1 = Task(
    key="08.stage1",
    signature="Zero1(parameters, make_optimizer)",
    make=make,
    axes=Axes(sizes=("uneven", "even", "few"), dtypes=("float64", "float32")),
    act=act,
    judge=judge,
    recognise=recognise,
    hints=LAB.hints(*planted(2), "all_reduced", "whole_state", "no_optimizer", "not_padded", "no_grad_forgotten"),
)
