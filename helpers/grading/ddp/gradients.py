"""03.start and 03.average: equal weights, mean gradients. And how models of this lab are drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from helpers.grading.ddp import LAB
from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_equal, expect_tensors, same
from helpers.grading.task import Finding, Task, Trial, Trouble, World
from helpers.learner.words import Words

GRADIENT = Words(en="the gradient of {}", zh="{} 的梯度")
STEP_GRADIENTS = [Words(en=f"the gradient of {{}} in step {n}", zh=f"第 {n} 步中 {{}} 的梯度") for n in (1, 2)]
STEP_PARAMETERS = [Words(en=f"the parameter {{}} after step {n}", zh=f"第 {n} 步后的参数 {{}} ") for n in (1, 2)]
PARAMETER = Words(en="the parameter {}", zh="参数 {} ")
BUFFER = Words(en="the buffer {}", zh="buffer {} ")
AXES = Axes(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"))
Named = Mapping[str, Tensor]


def mean_of(per_rank: Sequence[Named]) -> dict[str, Tensor]:
    return {name: total / len(per_rank) for name, total in sum_of(per_rank).items()}


def sum_of(per_rank: Sequence[Named]) -> dict[str, Tensor]:
    return {name: sum(one[name] for one in per_rank) for name in per_rank[0]}


def scaled(tensors: Named, factor: float) -> dict[str, Tensor]:
    return {name: tensor * factor for name, tensor in tensors.items()}


# -- models ----------------------------------------------------------------------------------------------------------
def dense(rng: Draw, *shape: int) -> Tensor:
    """A matrix may be transposed in memory, a vector is never a slice: so backward leaves gradients."""
    tensor = rng.tensor(*shape)
    return tensor if tensor.dim() > 1 else tensor.contiguous()


def weights_for(rng: Draw, model: nn.Module) -> dict[str, Tensor]:
    """For each parameter of `model`, by name, scaled so that tanh is not saturated."""
    return {name: dense(rng, *p.shape) / p.shape[-1] ** 0.5 for name, p in model.named_parameters()}


def network(inputs: Mapping[str, Any], weights: Named | None = None) -> nn.Sequential:
    """Of the `widths`, one parameter `frozen`; with copies of its own `weights`, if no others are given."""
    model = making.mlp(inputs["widths"])
    for name, parameter in model.named_parameters():
        parameter.data = (weights or inputs["weights"])[name].clone()
        parameter.requires_grad_(name != inputs["frozen"])
    return model


def trained(weights: Named, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if name != inputs["frozen"]}


def frozen_stays(inputs: Mapping[str, Any], gradients: Mapping[str, Any], rank: int) -> Finding:
    return expect_equal(GRADIENT.format(inputs["frozen"]), None, gradients.get(inputs["frozen"]), rank=rank)


def recognise_frozen(trouble: Trouble) -> list[str]:
    return ["gradient_missing"] if trouble.kind == "exception" and "NoneType" in trouble.text else []


# -- 03.start --------------------------------------------------------------------------------------------------------
UNSAVED = "mask"  # a buffer that is not in state_dict()


def normed_model(width: int) -> nn.Module:
    """With BatchNorm's three buffers, one of them an int64 count, one that is not saved, and a frozen parameter."""
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2)).double()
    model.register_buffer(UNSAVED, torch.zeros(width, dtype=torch.float64), persistent=False)
    model[2].bias.requires_grad_(False)
    return model


def make_start(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    width = rng.integer(3, 6)
    model = normed_model(width)
    inputs = []
    for _ in range(world_size):
        buffers = {name: dense(rng, *b.shape) for name, b in model.named_buffers() if b.is_floating_point()}
        buffers["1.num_batches_tracked"] = torch.tensor(rng.integer(10**8, 10**9))
        inputs.append({"width": width, "parameters": weights_for(rng, model), "buffers": buffers})
    return inputs


def act_start(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    model = normed_model(inputs["width"])
    for name, tensor in tensors_of(model).items():
        tensor.data = (inputs["parameters"] | inputs["buffers"])[name].clone()
    held = tensors_of(model)
    submitted(model)
    now = tensors_of(model)
    frozen = sorted(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    other = [name for name in held if now.get(name) is not held[name]]
    return {"tensors": {name: tensor.data for name, tensor in now.items()}, "frozen": frozen, "other": other}


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def judge_start(world: World) -> Iterator[Finding]:
    first, mean = world.inputs[0], mean_of([one["parameters"] for one in world.inputs])
    for rank, (own, output) in enumerate(zip(world.inputs, world.outputs, strict=True)):
        yield in_place(output["other"], rank)
        got, mistakes = output["tensors"], {"averaged_at_start": mean}
        found = list(expect_tensors(PARAMETER, first["parameters"], got, rank=rank, mistakes=mistakes))
        yield from found
        unsaved = {UNSAVED: own["buffers"][UNSAVED]}
        kept = {"unsaved_forgotten": first["buffers"] | unsaved, "buffers_forgotten": own["buffers"]}
        told = [key for key, one in kept.items() if all(f.ok for f in [*found, *expect_tensors(BUFFER, one, got)])]
        mistakes = {key: kept[key] for key in told}
        yield from expect_tensors(BUFFER, first["buffers"], got, rank=rank, mistakes=mistakes)
        yield expect_equal(FROZEN, ["2.bias"], output["frozen"], rank=rank)


FROZEN = Words(en="the list of frozen parameters", zh="冻结参数的列表")


def in_place(other: Sequence[str], rank: int) -> Finding:
    """other: names of tensors that are no longer the objects that the model had."""
    name = other[0] if other else ""
    en, zh = (
        f"{name} is another tensor now, expected the same one with new values",
        f"{name} 换成了另一个张量，应原地改写",
    )
    return expect(not other, en, zh, rank=rank)


def recognise_start(trouble: Trouble) -> list[str]:
    roots = set(re.findall(r"calls broadcast root (\d+)", trouble.text))
    return ["own_root"] if trouble.kind == "mismatch" and len(roots) > 1 else []


START = Task(
    key="03.start",
    signature="start_equal(model)",
    make=make_start,
    act=act_start,
    judge=judge_start,
    recognise=recognise_start,
    hints=LAB.hints("unsaved_forgotten", "buffers_forgotten", "averaged_at_start", "own_root"),
    axes=AXES,
)


# -- 03.average ------------------------------------------------------------------------------------------------------
def make_average(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    widths = [rng.integer(3, 6) for _ in range(3)] + [2]
    model = making.mlp(widths)
    frozen = rng.one_of(*dict(model.named_parameters()))
    inputs = []
    for _ in range(world_size):
        gradients = weights_for(rng, model) | {frozen: None}
        inputs.append({"widths": widths, "frozen": frozen, "weights": weights_for(rng, model), "gradients": gradients})
    return inputs


def act_average(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    model = network(inputs)
    for name, parameter in model.named_parameters():
        parameter.grad = inputs["gradients"][name]
    submitted(model)
    return {"gradients": making.gradients_of(model), "weights": dict(model.named_parameters())}


def judge_average(world: World) -> Iterator[Finding]:
    weights = sum_of([one["weights"] for one in world.inputs])
    total = sum_of([trained(one["gradients"], one) for one in world.inputs])
    for rank, (given, output) in enumerate(zip(world.inputs, world.outputs, strict=True)):
        mistakes = {
            "divided_twice": scaled(total, world.size**-2),
            "sum_for_mean": total,
            "wrong_divisor": [scaled(total, 1 / number) for number in (2, 3, 4, 5, 8)],
        }
        own, mean = trained(given["gradients"], given), scaled(total, 1 / world.size)
        if all(same(tensor, output["gradients"].get(name)) for name, tensor in own.items()):
            mistakes["own_gradient"] = own
        yield from expect_tensors(GRADIENT, mean, output["gradients"], rank=rank, mistakes=mistakes)
        yield frozen_stays(given, output["gradients"], rank)
        moved = {"averages_weights": [weights, scaled(weights, 1 / world.size)]}
        yield from expect_tensors(PARAMETER, given["weights"], output["weights"], rank=rank, mistakes=moved)


AVERAGE = Task(
    key="03.average",
    signature="average_gradients(model)",
    make=make_average,
    act=act_average,
    judge=judge_average,
    recognise=recognise_frozen,
    hints=LAB.hints(
        "divided_twice", "sum_for_mean", "wrong_divisor", "own_gradient", "averages_weights", "gradient_missing"
    ),
    axes=AXES,
)
