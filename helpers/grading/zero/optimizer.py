"""08.stage1: the optimizer's state in shards. Gradients are reduce-scattered, updated parameters all-gathered.

The check's optimizer has momentum: a sum taken for a mean shows in it, which Adam would hide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_payload
from helpers.grading.kit.stories import Story, judge_story, told_by
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.grading.zero import hints
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

NUM_STEPS, LEARNING_RATE, MOMENTUM = 3, 0.1, 0.9


class Momentum(making.Descent):
    """Descent with momentum: a buffer as large as each tensor that it is given, from its first step on."""

    def __init__(self, parameters: Any):
        super().__init__(parameters, LEARNING_RATE)
        self.buffers: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        """buffer = 0.9 buffer + gradient; parameter -= 0.1 buffer."""
        for i, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                before = self.buffers.get(i, torch.zeros_like(parameter.grad))
                self.buffers[i] = MOMENTUM * before + parameter.grad
                parameter -= self.lr * self.buffers[i]

    @property
    def num_elements(self) -> int:
        """Numbers that it keeps between steps."""
        return sum(buffer.numel() for buffer in self.buffers.values())


def make(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """A model that the ranks do not divide, and a gradient for each rank and step."""
    while True:
        widths = [making.integer(rng, 3, 6) for _ in range(4)]
        model = making.mlp(widths)
        if world_size == 1 or flat_of(model.parameters()).numel() % world_size:
            break
    weights = making.weights_for(rng, model)
    steps = [[making.weights_for(rng, model) for _ in range(NUM_STEPS)] for _ in range(world_size)]
    return [{"widths": widths, "weights": weights, "steps": own} for own in steps]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    model, made, story = making.mlp(inputs["widths"]), [], []
    model.load_state_dict(inputs["weights"])

    def make_optimizer(tensors: Any) -> Momentum:
        made.append(Momentum(tensors))
        return made[-1]

    sharded = submitted(list(model.parameters()), make_optimizer)
    for gradients in inputs["steps"]:
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].clone()
        sharded.step()
        story.append({f"parameter {name}": parameter.detach().clone() for name, parameter in model.named_parameters()})
    return {"story": story, "held": made[-1].num_elements if made else 0}


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
        weights = world.inputs[0]["weights"]
        flats = [flat_of(weights.values())] * n
        place = shard_of if self.begins is None else lambda *args: misplaced(*args)[self.begins]
        masters = [place(flats[0], rank, n).clone() for rank in range(n)]
        buffers, grads = [torch.zeros_like(one) for one in masters], [torch.zeros_like(one) for one in masters]
        told: list[list[dict[str, Tensor]]] = [[] for _ in range(n)]
        for step in range(NUM_STEPS):
            own = [flat_of(one["steps"][step].values()) for one in world.inputs]
            mean = sum(own) / (n if self.divided is None else self.divided)
            for rank in range(n):
                part = shard_of(mean if self.reduced else own[rank], rank, n)
                grads[rank] = part + self.added_up * grads[rank]
                buffers[rank] = (0.0 if self.anew else MOMENTUM) * buffers[rank] + grads[rank]
                masters[rank] = masters[rank] - LEARNING_RATE * buffers[rank]
            flats = [self._after(flats[rank], masters, rank) for rank in range(n)]
            for rank in range(n):
                told[rank].append(named_as(weights, flats[rank]))
        return told

    def _after(self, flat: Tensor, masters: list[Tensor], rank: int) -> Tensor:
        """What a rank's parameters are once it has gathered, as one line."""
        kept = shards_of(flat, len(masters))
        come = {"all": masters, "none": kept, "own": [*kept[:rank], masters[rank], *kept[rank + 1 :]]}
        return torch.cat(come[self.gathered])[: flat.numel()]


def named_as(weights: dict[str, Tensor], flat: Tensor) -> dict[str, Tensor]:
    """The line as named parameters again, as a step of a story."""
    pieces = flat.split([tensor.numel() for tensor in weights.values()])
    pairs = zip(weights.items(), pieces, strict=True)
    return {f"parameter {name}": piece.view(tensor.shape) for (name, tensor), piece in pairs}


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
    n, num_elements = world.size, flat_of(world.inputs[0]["weights"].values()).numel()
    right = Planted().stories(world)
    told: dict[str, list[list[Story]]] = {}
    for rank, output in enumerate(world.outputs):
        wrong = told_by(lambda one, rank=rank: stories_of(told, one, world)[rank], planted(n))
        yield from judge_story(right[rank], output["story"], wrong, rank=rank)
        yield judge_state(output["held"], num_elements, n, rank)
    yield from expect_messages(world)
    total = padded_bytes([num_elements], n)
    for op, num_bytes in (("reduce_scatter", total), ("all_gather", total // n)):
        usual = {"gather_forgotten": 0} if op == "all_gather" else {}
        yield from expect_payload(world, NUM_STEPS * num_bytes, op, mistakes=usual)


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
    act=act,
    judge=judge,
    recognise=recognise,
    hints=hints.of(*planted(2), "all_reduced", "whole_state", "no_optimizer", "not_padded", "no_grad_forgotten"),
)
