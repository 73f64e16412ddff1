"""What 07.column and 07.row share: a plain linear layer goes in, this rank's part comes out and is put to work."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.grading.drawing import Axes, Draw
from helpers.grading.kit.judging import expect, expect_tensor, same
from helpers.grading.observing import is_as, places, snapshot
from helpers.grading.task import Finding, Trial
from helpers.grading.tensor_parallel.phases import FORWARD, Call, backward, drawn, in_turn
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

AXES = Axes(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), calls=4)
BATCHES = 2  # that one layer sees: forward of both, then backward of both
PARAMETER = Words(en="layer.{}", zh="layer.{} ")
GRADIENT = Words(en="the gradient of layer.{}", zh="layer.{} 的梯度")
OUTPUT = Words(en="the output", zh="输出")
MOVED = Words(en="the output after an optimizer doubled weight and bias", zh="优化器把 weight 和 bias 加倍之后的输出")
BESIDE = Words(en="the gradient of x in x.sum(), beside the layer,", zh="与该层无关的 x.sum() 中 x 的梯度")
OF_X = Words(en="the gradient of x", zh="x 的梯度")


def plain_layer(rng: Draw, in_features: int, out_features: int) -> dict[str, Any]:
    """The parameters of a whole layer, the same on every rank; every other one has a bias."""
    weight, bias = drawn(rng, out_features, in_features).contiguous(), drawn(rng, out_features).contiguous()
    return {"weight": weight, "bias": in_turn(rng, bias, None)}


def rows_of(rng: Draw) -> list[int]:
    """The dimensions of x before the last, of each batch: one, or two or three. Fewer rows than a weight has not."""
    return [BATCHES, *in_turn(rng, [2, 3], [6], [8], [2, 1, 4])]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> Iterator[None]:
    """Two batches go forward, then both back; then the parameters move, as an optimizer moves them."""
    linear = linear_of(inputs)
    before, theirs = snapshot(linear), places(linear)
    layer = submitted(linear)
    shares = any(places(parameter) & theirs for parameter in parameters_of(layer).values())
    yield
    batches = [x.detach().requires_grad_() for x in inputs["x"].unbind()]
    outputs = [layer(x) for x in batches]
    trial.mark(FORWARD)
    yield
    returned = backward(trial, outputs, [one.clone() for one in inputs["gradient"].unbind()])
    found = parameters_of(layer)
    kept = {
        "parameters": {name: parameter.detach().clone() for name, parameter in found.items()},
        "gradients": {name: parameter.grad for name, parameter in found.items()},
        "stored": {name: parameter.untyped_storage().nbytes() for name, parameter in found.items()},
        "shares": shares,
    }
    moved = after_a_step(layer, found, batches[0])
    kept |= {"changed": not is_as(before, linear), "moved": moved}
    whole = weakref.ref(linear.weight)
    del linear, before
    if whole() is not None:
        gc.collect()  # it may hang in a cycle
    joined = {"y": joined_of(outputs), "x": joined_of([x.grad for x in batches])}
    batches[0].grad = None
    batches[0].sum().backward()
    return kept | joined | {"beside": batches[0].grad} | {"returned": returned, "alive": whole() is not None}


@torch.no_grad()
def after_a_step(layer: Any, found: Mapping[str, nn.Parameter], x: Tensor) -> Any:
    for parameter in found.values():
        parameter.mul_(2)
    return layer(x.detach())


def joined_of(tensors: list[Any]) -> Any:
    """As one tensor, if these are alike; else the one that is not a tensor, or the first."""
    if all(isinstance(one, Tensor) for one in tensors) and len({one.shape for one in tensors}) == 1:
        return torch.stack(tensors)
    return next((one for one in tensors if not isinstance(one, Tensor)), tensors[0])


def linear_of(inputs: Mapping[str, Any]) -> nn.Linear:
    out_features, in_features = inputs["weight"].shape
    linear = nn.Linear(in_features, out_features, bias=inputs["bias"] is not None, dtype=inputs["weight"].dtype)
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
    stored, due = got["stored"].get(name, 0), right.nbytes
    own = bytes_needed(got["parameters"].get(name))
    known = ["view_of_the_whole"] if stored > own else []
    yield expect(
        stored <= due,
        f"layer.{name} keeps {format_bytes(stored)} in memory, expected {format_bytes(due)}",
        f"layer.{name} 占用 {format_bytes(stored)} 内存，应为 {format_bytes(due)}",
        rank=rank,
        mistakes=["not_cut"] if stored == due * call.size and is_whole(right, got, name) else known,
    )


def bytes_needed(parameter: Any) -> int:
    """Bytes of its own numbers."""
    return parameter.nbytes if isinstance(parameter, Tensor) else 0


def judge_copy(call: Call, rank: int) -> Iterator[Finding]:
    """A copy, also on a rank alone; the given layer stays as it is, and goes with the last who needs it."""
    got, inputs = call.outputs[rank], call.inputs[rank]
    has_bias, is_cut = inputs["bias"] is not None, not same(inputs["weight"], got["parameters"].get("weight"))
    yield expect(
        has_bias or "bias" not in got["parameters"],
        "layer.bias is a parameter, expected None: the given layer has no bias",
        "layer.bias 是参数，应为 None：传入的层没有 bias",
        rank=rank,
    )
    yield expect(
        not got["shares"],
        "a parameter lies in the memory of the given layer, expected a copy",
        "有参数与传入的层共用内存，应为副本",
        rank=rank,
        mistakes=(["not_cut"] if not is_cut else []) + (["view_of_the_whole"] if is_cut or call.size == 1 else []),
    )
    yield expect(not got["changed"], "it changes the given layer", "改动了传入的层", rank=rank)
    yield expect(
        not got["alive"],
        "it keeps the whole of the given layer alive, beside its own part",
        "除了自己的部分，还保留着传入的整个层",
        rank=rank,
    )


def judge_beside(call: Call, rank: int) -> Iterator[Finding]:
    """Whatever else x goes into gets a gradient that the layer has nothing to do with."""
    x = call.inputs[rank]["x"][0]
    yield expect_tensor(BESIDE, torch.ones_like(x), call.outputs[rank]["beside"], rank=rank)


def judge_moved(call: Call, rank: int, y: Tensor) -> Iterator[Finding]:
    """The layer computes with its parameters as they are now. y: what is right before they moved, of both batches."""
    got = call.outputs[rank]
    if same(y, got["y"]) and "weight" in got["parameters"]:
        yield expect_tensor(MOVED, 2 * y[0], got["moved"], rank=rank)


def is_whole(right: Tensor, got: Mapping[str, Any], name: str) -> bool:
    parameter = got["parameters"].get(name)
    return isinstance(parameter, Tensor) and parameter.numel() > right.numel()


def recognised_shapes(text: str) -> str:
    """Which of torch's sentences about shapes this is: "product", "bias" or ""."""
    if "mat1 and mat2 shapes cannot be multiplied" in text or "size mismatch" in text:
        return "product"
    wrong_bias = ("The expanded size of the tensor", "The size of tensor a")
    return "bias" if any(words in text for words in wrong_bias) else ""
