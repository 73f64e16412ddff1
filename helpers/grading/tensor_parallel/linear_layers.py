"""Judges 07.column and 07.row: a linear layer y = x A of which each rank holds a shard of A.

ColumnParallelLinear holds some columns of A and returns a part of y; RowParallelLinear holds some rows of A and returns
the all-reduced y. nn.Linear stores A transposed, so columns of A are rows of its weight. A check runs the learner's
layer on live ranks, on two batches, and compares its parameters, outputs, gradients and messages with one process.

From forward_backward.py: a `ForwardBackward` is one case as it ran on all ranks: inputs and outputs with one item per
rank, and the messages of each pass. The decorator `judges_both_passes` makes a task's judge of a function that judges a
ForwardBackward. `by_case_number(rng, a, b)` is a in the first case, b in the second, and so on in turn; `draw_exact`
draws a tensor whose sums are exact. A "hidden collective" is one that autograd cannot see, such as dist.all_reduce on
a tensor that requires a gradient; a backward through it would give wrong gradients, so the run ends in an error.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_layer` calls
the learner's class, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks
returned with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and
memory layouts (`rng.case`), and `rng` draws the numbers. `words[…]` is a text of messages.yaml.
"""

from __future__ import annotations

import dataclasses
import gc
import re
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.grading.kit.comparisons import expect
from helpers.grading.kit.tensor_comparisons import expect_tensor, is_close
from helpers.grading.observed_function import is_unchanged, snapshot, storage_addresses
from helpers.grading.task import Judgement, RankContext, RunFailure, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator
from helpers.grading.tensor_parallel import LAB
from helpers.grading.tensor_parallel.forward_backward import (
    BACKWARD,
    FORWARD,
    ForwardBackward,
    all_reduce,
    by_case_number,
    draw_exact,
    expect_messages,
    judges_both_passes,
    recognise_hidden_collective,
    run_backward,
)
from helpers.quantities.units import format_bytes

words = LAB.messages

NUM_BATCHES = 2  # that one layer gets: forward of both, then backward of both
# For each of "weight", "bias", "x" and "y", the dimension that the ranks split; None: each rank has all of it.
Split = Mapping[str, int | None]
COLUMN_SPLIT: Split = {"weight": 0, "bias": 0, "x": None, "y": -1}
ROW_SPLIT: Split = {"weight": 1, "bias": None, "x": -1, "y": None}
# Features of x on a rank in 07.row. A common mistake is to split x once more, though each rank already gets its own
# features. On 2 to 5 ranks that leaves 1 to 4 features, which is neither 5 nor 7, so the shapes in torch's error show
# the mistake.
WIDTHS_PER_RANK = (5, 7)


# -- inputs ----------------------------------------------------------------------------------------------------------
def make_column(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """One full layer whose output features the ranks divide; in case 1 each rank has a single one.

    in_features is odd, so that an even number of ranks cannot split the weight evenly along the wrong dimension. Each
    rank gets the same x, and the gradient of its part of y.
    """
    in_features, out_features = 2 * rng.integer(2, 4) + 1, world_size * by_case_number(rng, 3, 1, 4, rng.integer(2, 5))
    layer, leading = draw_linear(rng, in_features, out_features), draw_leading_shape(rng)
    x = draw_exact(rng, *leading, in_features)
    gradients = [draw_exact(rng, *leading, out_features // world_size) for _ in range(world_size)]
    return [layer | {"x": x, "gradient": gradient} for gradient in gradients]


def make_row(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Each rank gets other features of x and the same gradient of y; in case 2 the layer has a single output."""
    width, out_features = rng.one_of(*WIDTHS_PER_RANK), by_case_number(rng, 3, 4, 1, rng.integer(2, 4))
    layer, leading = draw_linear(rng, world_size * width, out_features), draw_leading_shape(rng)
    gradient = draw_exact(rng, *leading, out_features)
    return [layer | {"x": draw_exact(rng, *leading, width), "gradient": gradient} for _ in range(world_size)]


def draw_linear(rng: CaseGenerator, in_features: int, out_features: int) -> dict[str, Any]:
    """The parameters of a full layer, the same on every rank; every other case has no bias."""
    weight, bias = draw_exact(rng, out_features, in_features).contiguous(), draw_exact(rng, out_features).contiguous()
    return {"weight": weight, "bias": by_case_number(rng, bias, None)}


def draw_leading_shape(rng: CaseGenerator) -> list[int]:
    """The dimensions of x before the last one: the batches, then one to three dimensions with 6 or 8 rows together."""
    return [NUM_BATCHES, *by_case_number(rng, [2, 3], [6], [8], [2, 1, 4])]


# -- on a rank -------------------------------------------------------------------------------------------------------
def run_layer(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs the learner's class, `submitted`. A generator; the last value is its return, which is what the judge gets.

    It makes a parallel layer of a full nn.Linear, sends two batches forward and then both back, and doubles the
    parameters in place, as an optimizer step might change them. At the end it deletes its nn.Linear, to see whether the
    layer keeps that alive. At each `yield` another case may take its turn on the ranks.
    """
    linear = linear_from(inputs)
    before, memory_of_linear = snapshot(linear), storage_addresses(linear)
    settings = settings_of(linear)
    layer = submitted(linear)
    shares_memory = any(storage_addresses(parameter) & memory_of_linear for parameter in parameters_of(layer).values())
    yield
    batches = [x.detach().requires_grad_() for x in inputs["x"].unbind()]
    outputs = [layer(x) for x in batches]
    context.mark(FORWARD)
    yield
    returned_instead = run_backward(context, outputs, [one.clone() for one in inputs["gradient"].unbind()])
    parameters = parameters_of(layer)
    result = {
        "returned_instead": returned_instead,
        "parameters": {name: parameter.detach().clone() for name, parameter in parameters.items()},
        "gradients": {name: parameter.grad for name, parameter in parameters.items()},
        "stored_bytes": {name: parameter.untyped_storage().nbytes() for name, parameter in parameters.items()},
        "shares_memory": shares_memory,
    }
    result["stepped"] = output_after_doubling(layer, parameters, batches[0])
    result["layer_changed"] = not is_unchanged(before, linear) or settings_of(linear) != settings
    full_weight = weakref.ref(linear.weight)
    del linear, before
    if full_weight() is not None:
        gc.collect()  # a cycle of references may keep it alive, which is no mistake
    result |= {"y": stacked(outputs), "x_gradient": stacked([x.grad for x in batches])}
    # The gradient that x gets from a use outside the layer; a hook that the layer has left on x would change it.
    batches[0].grad = None
    batches[0].sum().backward()
    return result | {"outside": batches[0].grad, "layer_kept_alive": full_weight() is not None}


@torch.no_grad()
def output_after_doubling(layer: Any, parameters: Mapping[str, nn.Parameter], x: Tensor) -> Any:
    """Doubles the parameters in place and runs the layer once more."""
    for parameter in parameters.values():
        parameter.mul_(2)
    return layer(x.detach())


def stacked(values: list[Any]) -> Any:
    """One tensor, if all values are tensors of one shape; else the first value that is no tensor, or the first one."""
    if all(isinstance(one, Tensor) for one in values) and len({one.shape for one in values}) == 1:
        return torch.stack(values)
    return next((one for one in values if not isinstance(one, Tensor)), values[0])


def linear_from(inputs: Mapping[str, Any]) -> nn.Linear:
    """The full layer, which the learner's class gets."""
    out_features, in_features = inputs["weight"].shape
    linear = nn.Linear(in_features, out_features, bias=inputs["bias"] is not None, dtype=inputs["weight"].dtype)
    linear.load_state_dict({name: inputs[name] for name in ("weight", "bias") if inputs[name] is not None})
    return linear


def settings_of(linear: nn.Linear) -> dict[str, Any]:
    """The layer's in_features, out_features and training mode."""
    return {name: value for name, value in vars(linear).items() if not name.startswith("_")}


def parameters_of(layer: Any) -> dict[str, nn.Parameter]:
    """The layer's parameters "weight" and "bias", which may also be the parameters of a layer inside it."""
    named = layer.named_parameters() if isinstance(layer, nn.Module) else []
    return {name.rpartition(".")[2]: parameter for name, parameter in named}


# -- the judge -------------------------------------------------------------------------------------------------------
class LinearReference:
    """The output y and all gradients of the full layer in one process.

    gradient: the gradient of y. gradients: the gradients of "x", "weight" and, if there is one, "bias".
    """

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None, gradient: Tensor):
        leaves = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in leaves.items()}
        y = F.linear(leaves["x"], leaves["weight"], leaves.get("bias"))
        y.backward(gradient)
        self.y, self.gradients = y.detach(), {name: leaf.grad for name, leaf in leaves.items()}


@judges_both_passes("layer(x)")
def judge_column(run: ForwardBackward) -> Iterator[Judgement]:
    """The forward sends no message, and the backward one all-reduce of the gradient of x for each batch."""
    yield from judge_ranks(run, "column", COLUMN_SPLIT)
    right = [all_reduce(run.inputs[0]["x"][0].nbytes)] * NUM_BATCHES
    yield from expect_messages(run, "column", FORWARD, [], gather="gathers_the_output")
    yield from expect_messages(run, "column", BACKWARD, right)


@judges_both_passes("layer(x)")
def judge_row(run: ForwardBackward) -> Iterator[Judgement]:
    """The forward sends one all-reduce of the output for each batch, and the backward no message."""
    yield from judge_ranks(run, "row", ROW_SPLIT)
    right = [all_reduce(run.inputs[0]["gradient"][0].nbytes)] * NUM_BATCHES  # y has the shape of its gradient
    yield from expect_messages(run, "row", FORWARD, right, gather="gathers_the_input")
    yield from expect_messages(run, "row", BACKWARD, [])


def judge_ranks(run: ForwardBackward, task: str, split: Split) -> Iterator[Judgement]:
    """The parameters, output and gradients of every rank. task: "column" or "row"."""
    inputs = run.inputs[0]
    x, gradient = (
        inputs[name] if dim is None else torch.cat([one[name] for one in run.inputs], dim)
        for name, dim in {"x": split["x"], "gradient": split["y"]}.items()
    )
    reference = LinearReference(x, inputs["weight"], inputs["bias"], gradient)
    for rank, got in enumerate(run.outputs):
        y = shard_of(reference.y, split["y"], rank, run.size)
        right = {name: shard_of(one, split[name], rank, run.size) for name, one in reference.gradients.items()}
        for name in ("weight", "bias"):
            if inputs[name] is not None:
                yield from judge_parameter(run, rank, name, split[name])
        yield expect_tensor(words[f"output.{task}"], y, got["y"], rank=rank)
        yield from judge_behaviour(run, rank, y)
        yield expect_tensor(words[f"gradient.{task}.x"], right["x"], got["x_gradient"], rank=rank)
        for name in right.keys() & got["gradients"].keys():  # "weight", and "bias" if the layer has one
            yield expect_tensor(words[f"gradient.{task}.{name}"], right[name], got["gradients"][name], rank=rank)


def shard_of(full: Tensor, dim: int | None, rank: int, size: int) -> Tensor:
    """The rank's shard of a tensor that `size` ranks split along `dim`; all of it if `dim` is None."""
    return full if dim is None else full.chunk(size, dim)[rank]


def judge_parameter(run: ForwardBackward, rank: int, name: str, dim: int | None) -> Iterator[Judgement]:
    """The parameter has the values of this rank's shard along `dim`, and no more memory than the shard needs."""
    right, got = shard_of(run.inputs[rank][name], dim, rank, run.size), run.outputs[rank]
    count, stored = right.shape[dim or 0], got["stored_bytes"].get(name, 0)
    what = words["shard.all" if dim is None else f"shard.{dim}"].format(name, count, rank * count)
    # If no rank has a parameter of this name, the learner has not registered it; None is the value that this mistake
    # gives.
    mistakes = {} if any(name in one["parameters"] for one in run.outputs) else {"not_parameters": None}
    yield expect_tensor(what, right, got["parameters"].get(name), rank=rank, mistakes=mistakes)
    message = words["bytes_in_memory"].format(name, format_bytes(stored), format_bytes(right.nbytes))
    yield expect(stored <= right.nbytes, message, rank=rank)


def judge_behaviour(run: ForwardBackward, rank: int, y: Tensor) -> Iterator[Judgement]:
    """What both layers must do alike, on one rank. y: the right output of both batches."""
    got, inputs = run.outputs[rank], run.inputs[rank]
    has_bias = inputs["bias"] is not None
    yield expect(has_bias or "bias" not in got["parameters"], words["bias_is_a_parameter"], rank=rank)
    # The shard is a copy, even with one rank, and the full nn.Linear stays as it was and can be freed.
    for name in ("shares_memory", "layer_changed", "layer_kept_alive"):
        yield expect(not got[name], words[name], rank=rank)
    # A use of x outside the layer, x.sum(), gets a gradient of ones, so the layer must have put no hook on x.
    ones = torch.ones_like(inputs["x"][0])
    yield expect_tensor(words["gradient_beside_layer"], ones, got["outside"], rank=rank)
    # The layer computes with its current parameters, so its output doubles when they do, if it was right before.
    if is_close(y, got["y"]) and "weight" in got["parameters"]:
        yield expect_tensor(words["output_after_doubling"], 2 * y[0], got["stepped"], rank=rank)


# -- mistakes that show as a failure ---------------------------------------------------------------------------------
def error_about(text: str) -> str:
    """What torch's error is about: "dtype", "product" (shapes of x and the weight), "bias", or "" for another text."""
    if "have the same dtype" in text:
        return "dtype"
    if "mat1 and mat2 shapes cannot be multiplied" in text or "size mismatch" in text:
        return "product"
    bias_errors = ("The expanded size of the tensor", "The size of tensor a")  # how torch's errors about adding begin
    return "bias" if any(part in text for part in bias_errors) else ""


def recognise_column(failure: RunFailure) -> list[str]:
    """The hints that fit torch's error about a product or a bias, or a hidden collective."""
    known = {"dtype": ["other_dtype"], "product": ["cut_across"], "bias": ["bias_not_cut"], "": []}
    return recognise_hidden_collective(failure) + known[error_about(failure.text)]


def recognise_row(failure: RunFailure) -> list[str]:
    """Reads from torch's error about a product how many features x had: WIDTHS_PER_RANK, or fewer if split again."""
    known = {"dtype": ["other_dtype"], "product": ["cut_across"], "bias": ["bias_cut"], "": []}[
        error_about(failure.text)
    ]
    product = re.search(r"\(\d+x(\d+) and \d+x\d+\)", failure.text)  # "(6x2 and 5x4)": x has 2 features
    if product and int(product.group(1)) not in WIDTHS_PER_RANK:
        known = ["input_cut_again"] if int(product.group(1)) < min(WIDTHS_PER_RANK) else []
    return recognise_hidden_collective(failure) + known


COLUMN = Task(
    key="07.column",
    signature="ColumnParallelLinear(linear)",
    make_inputs=make_column,
    # There are at least four cases, since `by_case_number` takes turns of up to four.
    variations=Variations(dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), min_cases=4),
    run_submission=run_layer,
    judge=judge_column,
    recognise_failure=recognise_column,
)

ROW = dataclasses.replace(
    COLUMN,
    key="07.row",
    signature="RowParallelLinear(linear)",
    make_inputs=make_row,
    judge=judge_row,
    recognise_failure=recognise_row,
)
