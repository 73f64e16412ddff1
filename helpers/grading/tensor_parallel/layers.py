"""What 07.column and 07.row share: a plain linear layer goes in, this rank's part comes out and is put to work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_tensor
from helpers.grading.task import Finding, Trial
from helpers.grading.tensor_parallel.phases import FLOAT, Call, autograd_sees_all, there_and_back
from helpers.units import format_bytes
from helpers.words import Words

PARAMETER = Words(en="layer.{}", zh="layer.{} ")
GRADIENT = Words(en="the gradient of layer.{}", zh="layer.{} 的梯度")
OUTPUT = Words(en="the output", zh="输出")
OF_X = Words(en="the gradient of x", zh="x 的梯度")


def plain_layer(rng: torch.Generator, in_features: int, out_features: int, *, bias: bool) -> dict[str, Any]:
    """The parameters of a whole layer, the same on every rank."""
    weight = making.normal(rng, out_features, in_features)
    return {"weight": weight, "bias": making.normal(rng, out_features) if bias else None}


@autograd_sees_all()
def act_call(submitted, inputs: dict[str, Any], trial: Trial) -> dict[str, Any]:
    layer = submitted(linear_of(inputs))
    x = inputs["x"].clone().requires_grad_()
    y = layer(x)
    returned = there_and_back(trial, y, inputs["gradient"].clone())
    found = parameters_of(layer)
    return {
        "returned": returned,
        "y": y,
        "x": x.grad,
        "parameters": found,
        "gradients": {name: parameter.grad for name, parameter in found.items()},
        "stored": {name: parameter.untyped_storage().nbytes() for name, parameter in found.items()},
    }


def linear_of(inputs: Mapping[str, Any]) -> nn.Linear:
    out_features, in_features = inputs["weight"].shape
    linear = nn.Linear(in_features, out_features, bias=inputs["bias"] is not None, dtype=torch.float64)
    linear.load_state_dict({name: inputs[name] for name in ("weight", "bias") if inputs[name] is not None})
    return linear


def parameters_of(layer: Any) -> dict[str, nn.Parameter]:
    """Its parameters called weight and bias, its own or those of a layer inside."""
    named = layer.named_parameters() if isinstance(layer, nn.Module) else []
    return {name.rpartition(".")[2]: parameter for name, parameter in named}


# -- beside the judge ------------------------------------------------------------------------------------------------
class Whole:
    """The layer in one process, and what it gives: the output, and all gradients."""

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None, gradient: Tensor):
        leaves = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in leaves.items()}
        y = F.linear(leaves["x"], leaves["weight"], leaves.get("bias"))
        y.backward(gradient)
        self.y, self.gradients = y.detach(), {name: leaf.grad for name, leaf in leaves.items()}
        self.x = self.gradients["x"]


def judge_parameter(call: Call, rank: int, name: str, right: Tensor, mistakes: Mapping[str, Any]) -> Iterator[Finding]:
    """Its value, and that nothing but this part is kept in memory."""
    got = call.outputs[rank]
    yield expect_tensor(PARAMETER.format(name), right, got["parameters"].get(name), rank=rank, mistakes=mistakes)
    stored, due = got["stored"].get(name, 0), FLOAT * right.numel()
    yield expect(
        stored <= due,
        f"layer.{name} keeps {format_bytes(stored)} in memory, expected {format_bytes(due)}",
        f"layer.{name} 占用 {format_bytes(stored)} 内存，应为 {format_bytes(due)}",
        rank=rank,
        mistakes=["not_cut" if stored == due * call.size and is_whole(right, got, name) else "view_of_the_whole"],
    )


def is_whole(right: Tensor, got: Mapping[str, Any], name: str) -> bool:
    parameter = got["parameters"].get(name)
    return isinstance(parameter, Tensor) and parameter.numel() > right.numel()


def recognised_shapes(text: str) -> str:
    """Which of torch's sentences about shapes this is: "product", "bias" or ""."""
    if "mat1 and mat2 shapes cannot be multiplied" in text or "size mismatch" in text:
        return "product"
    wrong_bias = ("The expanded size of the tensor", "The size of tensor a")
    return "bias" if any(words in text for words in wrong_bias) else ""
