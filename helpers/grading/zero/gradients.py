"""08.stage2: each gradient is reduce-scattered as soon as backward has it, its shard kept, the whole of it freed."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_payload, expect_tensor, is_silent, same
from helpers.grading.kit.meter import Meter, one_thread
from helpers.grading.task import Finding, Task, Trial, World
from helpers.grading.zero import LAB
from helpers.grading.zero.parts import (
    Patience,
    expect_messages,
    is_unpadded,
    misplaced,
    padded_bytes,
    shard_of,
)
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

EXAMPLES, SLACK = 2, 512  # bytes
ODD = (7, 11, 13, 17)  # none of 2, 3, 4 and 5 divides one, nor a product of them
SHARDS = [Words(en=f"shards[{{}}] of step {n}", zh=f"第 {n} 步的 shards[{{}}] ") for n in (1, 2)]


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Parameters that the ranks divide, or not, or that are smaller than the ranks are many.

    All is positive, so that no sum of gradients cancels in float32.
    """
    n, dtype = world_size, rng.case.dtypes
    widths = {
        "uneven": [rng.one_of(*ODD) for _ in range(3)],
        "even": [n * rng.integer(2, 4) for _ in range(3)],
        "few": [rng.integer(1, max(1, n - 1)), 1, 1],
    }[rng.case.sizes]
    micro_batches = rng.one_of((1, 2), (1, 3), (2, 1)) if rng.case.number else (1, 2)
    weights = making.weights_for(rng, making.mlp(widths))
    weights = {name: 0.3 * weight.abs().to(getattr(torch, dtype)) for name, weight in weights.items()}
    common = {"widths": widths, "dtype": dtype, "weights": weights, "micro_batches": micro_batches}
    num_batches = sum(micro_batches)
    return [common | {"x": [rng.tensor(EXAMPLES, widths[0]).abs() for _ in range(num_batches)]} for _ in range(n)]


def model_of(inputs: Mapping[str, Any]) -> nn.Module:
    model = making.mlp(inputs["widths"]).to(getattr(torch, inputs["dtype"]))
    model.load_state_dict(inputs["weights"])
    return model


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Iterator[None]:
    model = model_of(inputs)
    parameters, left = list(model.parameters()), []

    def seen(parameter: nn.Parameter) -> None:
        """Before the learner's hook: what the gradients that came earlier still hold."""
        trial.mark("gradient")
        left.append(sum(bytes_of(p.grad) for p in parameters if p is not parameter))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(seen)
    given = list(parameters)
    finish, steps, batches = submitted(given), [], iter(inputs["x"])
    if not callable(finish):
        return {"finish": type(finish).__name__}
    patience, enough, returned = Patience(), bytes_enough(parameters, trial.world_size), []
    for num_batches in inputs["micro_batches"]:
        held = []
        for _ in range(num_batches):
            yield
            held.append(backward(model, next(batches), patience, enough))
            left.append(sum(bytes_of(p.grad) for p in parameters))
            trial.mark("backward over")
        shards = finish()
        returned.append(shards)
        steps.append(
            {"shards": [one.clone() for one in shards] if is_list(shards) else repr(shards)[:60], "held": held}
        )
    is_same = len(given) == len(parameters) and all(map(operator.is_, given, parameters))
    stays = all(is_as_it_was(shards, step["shards"]) for shards, step in zip(returned, steps, strict=True))
    return {"finish": "callable", "steps": steps, "left": left, "kept": is_same, "stays": stays}


def is_as_it_was(shards: Any, before: Any) -> bool:
    """Whether what finish() returned holds what it held then; what is no list of tensors is judged elsewhere."""
    return not is_list(before) or (len(shards) == len(before) and all(map(torch.equal, shards, before)))


def bytes_of(gradient: Tensor | None) -> int:
    return 0 if gradient is None else gradient.numel() * gradient.element_size()


def is_list(shards: Any) -> bool:
    return isinstance(shards, list | tuple) and all(isinstance(one, Tensor) for one in shards)


def bytes_enough(parameters: Sequence[Tensor], world_size: int) -> float:
    """All shards of a rank, and some room."""
    return 1.5 * line_bytes(parameters, world_size) / world_size + SLACK


def line_bytes(parameters: Sequence[Tensor], world_size: int) -> int:
    """Of all ranks' shards."""
    return padded_bytes([one.numel() for one in parameters], world_size, parameters[0].element_size())


def backward(model: nn.Module, x: Tensor, patience: Patience, enough: float) -> int:
    """Bytes that this micro-batch leaves behind."""
    with Meter([*model.parameters(), x]) as meter:
        loss = model(x).square().sum()
        loss.backward()
        del loss
        return patience.held(meter, enough)


# -- what each rank should have, and what mistakes give --------------------------------------------------------------
def gradients_of(inputs: dict[str, Any], number: int) -> list[Tensor]:
    """One rank's, of one micro-batch, flat."""
    model = model_of(inputs)
    model(inputs["x"][number]).square().sum().backward()
    return [parameter.grad.flatten() for parameter in model.parameters()]


class Step:
    """Gradients of one step: of each micro-batch, rank and parameter, flat."""

    def __init__(self, world: World, numbers: Sequence[int]):
        self.n = world.size
        with one_thread():
            self.batches = [[gradients_of(one, number) for one in world.inputs] for number in numbers]

    def mean(self, i: int, weights: Sequence[float] | None = None) -> Tensor:
        """Of parameter i over the ranks, summed over the micro-batches, each times its weight."""
        weights = weights or [1.0] * len(self.batches)
        pairs = zip(self.batches, weights, strict=True)
        return sum(weight * sum(rank[i] for rank in batch) for batch, weight in pairs) / self.n

    def own(self, rank: int, i: int) -> Tensor:
        return sum(batch[rank][i] for batch in self.batches)

    def shard(self, rank: int, i: int) -> Tensor:
        return shard_of(self.mean(i), rank, self.n)

    def wrong(self, rank: int, i: int, before: Step | None) -> dict[str, Any]:
        n, mean = self.n, self.mean(i)
        wrong = {
            "sum_for_mean": self.shard(rank, i) * n,
            "divided_twice": self.shard(rank, i) / n,
            "own_gradient": [shard_of(self.own(rank, i), rank, n), shard_of(self.own(rank, i), rank, n) / n],
            "wrong_place": misplaced(mean, rank, n),
        }
        if len(self.batches) > 1:
            last = [0.0] * (len(self.batches) - 1) + [1.0]
            wrong["last_micro_batch_only"] = shard_of(self.mean(i, last), rank, n)
            twice = [float(n) for n in range(len(self.batches), 0, -1)]  # the first is in the second's gradient, too
            wrong["gradient_kept"] = shard_of(self.mean(i, twice), rank, n)
        if before is not None:
            wrong["step_before_kept"] = [self.shard(rank, i) + before.shard(rank, i)]
        return wrong


def judge(world: World) -> Iterator[Finding]:
    kinds = [output["finish"] for output in world.outputs]
    yield expect(
        kinds == ["callable"] * world.size,
        f"scatter_gradients returns {kinds[0]}, expected a function to call after backward",
        f"scatter_gradients 返回了 {kinds[0]}，应返回一个在反向传播之后调用的函数",
    )
    if kinds != ["callable"] * world.size:
        return
    weights = list(world.inputs[0]["weights"].values())
    yield from judge_memory(world, weights)
    yield from judge_values(world, len(weights))
    if is_silent(world):
        return
    yield from judge_order(world, len(weights))
    yield from expect_messages(world)
    num_batches = sum(world.inputs[0]["micro_batches"])
    yield from expect_payload(world, num_batches * line_bytes(weights, world.size), "reduce_scatter")


def judge_order(world: World, num_parameters: int) -> Iterator[Finding]:
    """In each backward a message for each parameter leaves, the first while gradients still come."""
    for rank, (log, marks) in enumerate(zip(world.logs, world.marks, strict=True)):
        start = 0.0
        for end in [when for name, when in marks if name == "backward over"]:
            last = max(when for name, when in marks if name == "gradient" and when < end)
            sent = [event for event in log.events if start < event.start < end]
            yield expect(
                any(event.start < last for event in sent),
                "nothing is sent before the last gradient is there, so all of them are held at once",
                "最后一个梯度算完才开始通信，所有梯度会同时占着显存",
                rank=rank,
                mistakes=["after_backward"] if log.events else ["own_gradient"],
            )
            yield expect(
                not sent or len(sent) == num_parameters,
                f"one backward issues {len(sent)} messages, expected one for each of {num_parameters} parameters",
                f"一次反向发出了 {len(sent)} 条消息，应为每个参数一条，共 {num_parameters} 条",
                rank=rank,
            )
            start = end


def judge_memory(world: World, weights: Sequence[Tensor]) -> Iterator[Finding]:
    """Whole gradients go as they come, and a micro-batch leaves shards behind, no more."""
    shards = format_bytes(line_bytes(weights, world.size) // world.size)
    for rank, output in enumerate(world.outputs):
        left = max(output["left"])
        yield expect(
            left == 0,
            f"after their hooks {format_bytes(left)} of gradients are still in .grad",
            f"hook 之后还有 {format_bytes(left)} 的梯度留在 .grad 里",
            rank=rank,
            mistakes=["gradient_kept"],
        )
        held = max(held for step in output["steps"] for held in step["held"])
        yield expect(
            held <= bytes_enough(weights, world.size) or left > 0,
            f"after a backward {format_bytes(held)} are held, and all shards together are {shards}",
            f"一次反向之后还占着 {format_bytes(held)}，而所有分片一共只有 {shards}",
            rank=rank,
            mistakes=["whole_buffer_kept"],
        )
        yield expect(output["kept"], "it changes the list of parameters", "改动了 parameters 列表", rank=rank)
        yield expect(
            output["stays"],
            "the shards that finish() returned change in the next step: the list of a step stays as it is",
            "finish() 返回的分片在下一步被改动了：每一步返回的列表应保持不变",
            rank=rank,
        )


def judge_values(world: World, num_parameters: int) -> Iterator[Finding]:
    counts = world.inputs[0]["micro_batches"]
    steps = [Step(world, range(sum(counts[:i]), sum(counts[: i + 1]))) for i in range(len(counts))]
    for rank, output in enumerate(world.outputs):
        for number, (step, said) in enumerate(zip(steps, output["steps"], strict=True)):
            got = said["shards"]
            right = [step.shard(rank, i) for i in range(num_parameters)]
            too_many = bool(number) and isinstance(got, list) and len(got) > num_parameters
            yield expect(
                isinstance(got, list) and len(got) == num_parameters,
                f"finish() returns {len(got) if isinstance(got, list) else got}, expected {num_parameters} shards",
                f"finish() 返回了 {len(got) if isinstance(got, list) else got}，应为 {num_parameters} 个分片",
                rank=rank,
                mistakes=["nothing_returned"] if got == "None" else ["step_before_kept"] if too_many else [],
            )
            if not (isinstance(got, list) and len(got) == num_parameters):
                break
            turned = all(map(same, reversed(right), got))
            for i, (expected, one) in enumerate(zip(right, got, strict=True)):
                known = {"order_of_arrival": one} if turned else {}
                if not (turned or same(expected, one)):
                    known = step.wrong(rank, i, steps[number - 1] if number else None)
                yield expect_tensor(SHARDS[number].format(i), expected, one, rank=rank, mistakes=known)


STAGE_2 = Task(
    key="08.stage2",
    signature="scatter_gradients(parameters)",
    make=make,
    axes=Axes(sizes=("uneven", "even", "few"), dtypes=("float64", "float32")),
    act=act,
    judge=judge,
    recognise=lambda trouble: ["not_padded"] if is_unpadded(trouble) else [],
    hints=LAB.hints(
        "after_backward",
        "gradient_kept",
        "whole_buffer_kept",
        "order_of_arrival",
        "nothing_returned",
        "all_reduced",
        "sum_for_mean",
        "divided_twice",
        "own_gradient",
        "wrong_place",
        "last_micro_batch_only",
        "step_before_kept",
        "not_padded",
    ),
)
