"""Judges 07.column and 07.row: a linear layer y = x A of which each rank holds a shard of A.

ColumnParallelLinear holds some columns of A and returns a part of y; RowParallelLinear holds some rows of A and returns
the all-reduced y. nn.Linear stores A transposed, so columns of A are rows of its weight. forward_backward.py runs the
learner's layer on live ranks; here its parameters, outputs, gradients and messages are compared with one process.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. A mistake is a wrong solution that learners often write. Its name, such as
"not_cut", is the key of its hint in hints.yaml. The `expect…` functions compare one value; their `mistakes` maps
such keys to the value that the mistake gives. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.comparisons import expect_tensor
from helpers.grading.task import JudgedWorld, Judgement, RunFailure, Task
from helpers.grading.tensor_parallel import LAB
from helpers.grading.tensor_parallel.forward_backward import (
    BACKWARD,
    FORWARD,
    LAYER_VARIATIONS,
    NUM_BATCHES,
    ForwardBackward,
    LinearReference,
    all_reduce,
    by_case_number,
    draw_exact,
    draw_leading_shape,
    draw_linear,
    expect_differentiable,
    expect_messages,
    has_all_gather,
    judge_copy,
    judge_outside,
    judge_parameter,
    judge_stepped,
    recognise_hidden_collective,
    run_layer,
    shape_error_of,
)
from helpers.records import CommEvent

words = LAB.messages


# -- 07.column -------------------------------------------------------------------------------------------------------
def make_column(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """One layer whose outputs the ranks divide; in case 1 each rank has a single output.

    in_features is odd, so that an even number of ranks cannot split the weight along the wrong dimension.
    """
    in_features, out_features = 2 * rng.integer(2, 4) + 1, world_size * by_case_number(rng, 3, 1, 4, rng.integer(2, 5))
    layer, leading = draw_linear(rng, in_features, out_features), draw_leading_shape(rng)
    x = draw_exact(rng, *leading, in_features)
    gradients = [draw_exact(rng, *leading, out_features // world_size) for _ in range(world_size)]
    return [layer | {"x": x, "gradient": gradient} for gradient in gradients]


def judge_column(world: JudgedWorld) -> Iterator[Judgement]:
    """No message in forward; in backward one all-reduce of the gradient of x for each batch."""
    run = ForwardBackward(world)
    yield from expect_differentiable(run, "layer(x)")
    if run.returned_instead:
        return
    inputs = run.inputs[0]
    gradient = torch.cat([one["gradient"] for one in run.inputs], dim=-1)
    reference = LinearReference(inputs["x"], inputs["weight"], inputs["bias"], gradient)
    for rank in range(run.size):
        yield from judge_column_rank(run, rank, reference)

    def mistakes_of_forward(events: Sequence[CommEvent]) -> list[str]:
        return ["gathers_the_output" if has_all_gather(events) else "forward_reduced"]

    num_tensors = 2 if inputs["bias"] is None else 3  # x, the weight and the bias
    by_count = {0: ["backward_not_reduced"], NUM_BATCHES * num_tensors: ["gradients_reduced"]}
    right = [all_reduce(inputs["x"][0].nbytes)] * NUM_BATCHES
    yield from expect_messages(run, FORWARD, [], mistakes_of=mistakes_of_forward)
    yield from expect_messages(run, BACKWARD, right, mistakes_of=lambda events: by_count.get(len(events), []))


def judge_column_rank(run: ForwardBackward, rank: int, reference: LinearReference) -> Iterator[Judgement]:
    """The parameters, output and gradients of one rank."""
    inputs, got, size = run.inputs[rank], run.outputs[rank], run.size
    parts = reference.y.chunk(size, dim=-1)
    bias = 0 if inputs["bias"] is None else inputs["bias"].chunk(size)[rank]
    for name in ("weight", "bias"):
        if inputs[name] is not None:
            wrong = wrong_column_shards(inputs[name], size)
            yield from judge_parameter(run, rank, name, inputs[name].chunk(size)[rank], wrong)
    wrong = {"bias_forgotten": parts[rank] - bias, "forward_reduced": sum(parts)}
    wrong |= {"gathers_the_output": reference.y} if has_all_gather(run.events[rank][FORWARD]) else {}
    yield expect_tensor(words["output"], parts[rank], got["y"], rank=rank, mistakes=wrong)
    yield from judge_copy(run, rank)
    yield from judge_outside(run, rank)
    yield from judge_stepped(run, rank, parts[rank])
    of_x = reference.gradients["x"]
    local = inputs["gradient"] @ inputs["weight"].chunk(size)[rank]
    wrong = {"backward_not_reduced": local, "averaged": of_x / size}
    yield expect_tensor(words["gradient_of_x"], of_x, got["x_gradient"], rank=rank, mistakes=wrong)
    for name in got["gradients"].keys() & reference.gradients.keys():
        shards = reference.gradients[name].chunk(size)
        wrong = {"gradients_reduced": [sum(shards), sum(shards) / size]}
        what = words["layer_gradient"].format(name)
        yield expect_tensor(what, shards[rank], got["gradients"][name], rank=rank, mistakes=wrong)


def wrong_column_shards(tensor: torch.Tensor, size: int) -> dict[str, Any]:
    """What each mistake keeps of a weight or bias, on any rank."""
    return {
        "not_cut": tensor,
        "not_parameters": None,
        "same_part_everywhere": tensor.chunk(size)[0],
        "dealt_out": [tensor[rank::size] for rank in range(size)],
    }


def recognise_column(failure: RunFailure) -> list[str]:
    known = {"product": ["cut_across"], "bias": ["bias_not_cut"], "": []}
    return recognise_hidden_collective(failure) + known[shape_error_of(failure.text)]


COLUMN = Task(
    key="07.column",
    signature="ColumnParallelLinear(linear)",
    make_inputs=make_column,
    variations=LAYER_VARIATIONS,
    run_submission=run_layer,
    judge=judge_column,
    recognise_failure=recognise_column,
    hints=LAB.hints(
        "unknown_to_autograd no_gradient cut_across bias_not_cut not_parameters same_part_everywhere",
        "dealt_out gathers_the_output not_cut view_of_the_whole bias_forgotten forward_reduced",
        "backward_not_reduced averaged gradients_reduced",
    ),
)

# -- 07.row ----------------------------------------------------------------------------------------------------------
# Features of x on a rank. Split once more over 2 to 5 ranks, 5 and 7 give shards of 1 to 4 features: none is 5 or 7, so
# the shapes in torch's error say whether an answer split x again.
WIDTHS_PER_RANK = (5, 7)


def make_row(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Each rank gets other features of x and the same gradient of y; in case 2 the layer has a single output."""
    width, out_features = rng.one_of(*WIDTHS_PER_RANK), by_case_number(rng, 3, 4, 1, rng.integer(2, 4))
    layer, leading = draw_linear(rng, world_size * width, out_features), draw_leading_shape(rng)
    gradient = draw_exact(rng, *leading, out_features)
    return [layer | {"x": draw_exact(rng, *leading, width), "gradient": gradient} for _ in range(world_size)]


def judge_row(world: JudgedWorld) -> Iterator[Judgement]:
    """In forward one all-reduce of the output for each batch; no message in backward."""
    run = ForwardBackward(world)
    yield from expect_differentiable(run, "layer(x)")
    if run.returned_instead:
        return
    inputs = run.inputs[0]
    x = torch.cat([one["x"] for one in run.inputs], dim=-1)
    reference = LinearReference(x, inputs["weight"], inputs["bias"], inputs["gradient"])
    for rank in range(run.size):
        yield from judge_row_rank(run, rank, reference)

    def mistakes_of_forward(events: Sequence[CommEvent]) -> list[str]:
        if has_all_gather(events):
            return ["gathers_the_input"]
        return [] if events else ["forward_not_reduced"]

    def mistakes_of_backward(events: Sequence[CommEvent]) -> list[str]:
        if len(events) == NUM_BATCHES:
            return ["backward_reduced"]
        num_parameters = 1 if inputs["bias"] is None else 2
        return ["gradients_reduced"] if len(events) in (num_parameters, NUM_BATCHES * num_parameters) else []

    right = [all_reduce(reference.y[0].nbytes)] * NUM_BATCHES
    yield from expect_messages(run, FORWARD, right, mistakes_of=mistakes_of_forward)
    yield from expect_messages(run, BACKWARD, [], mistakes_of=mistakes_of_backward)


def judge_row_rank(run: ForwardBackward, rank: int, reference: LinearReference) -> Iterator[Judgement]:
    """The parameters, output and gradients of one rank."""
    inputs, got, size = run.inputs[rank], run.outputs[rank], run.size
    shards, bias = inputs["weight"].chunk(size, dim=1), inputs["bias"]
    wrong = {
        "not_cut": inputs["weight"],
        "not_parameters": None,
        "same_part_everywhere": shards[0],
        "dealt_out": [inputs["weight"][:, other::size] for other in range(size)],
    }
    yield from judge_parameter(run, rank, "weight", shards[rank], wrong)
    if bias is not None:
        missing = "bias_on_one_rank" if rank else "not_parameters"  # rank 0 is the one that would have it
        yield from judge_parameter(run, rank, "bias", bias, {"bias_shared_out": bias / size, missing: None})
    yield judge_row_output(run, rank, reference)
    yield from judge_copy(run, rank)
    yield from judge_outside(run, rank)
    yield from judge_stepped(run, rank, reference.y)
    of_x = reference.gradients["x"].chunk(size, dim=-1)[rank]
    mistakes = {"backward_reduced": of_x * size}
    yield expect_tensor(words["gradient_of_x"], of_x, got["x_gradient"], rank=rank, mistakes=mistakes)
    yield from judge_row_gradients(run, rank, reference)


def judge_row_gradients(run: ForwardBackward, rank: int, reference: LinearReference) -> Iterator[Judgement]:
    got, size = run.outputs[rank]["gradients"], run.size
    of_weight, of_bias = reference.gradients["weight"].chunk(size, dim=1)[rank], reference.gradients.get("bias")
    wrong = {"backward_reduced": of_weight * size}
    if "weight" in got:
        what = words["layer_gradient"].format("weight")
        yield expect_tensor(what, of_weight, got["weight"], rank=rank, mistakes=wrong)
    if of_bias is not None and "bias" in got:
        wrong = {
            "bias_shared_out": of_bias / size,
            "bias_on_one_rank": [None, of_bias * 0] if rank else [],
            "gradients_reduced": of_bias * size,
        }
        yield expect_tensor(words["layer_gradient"].format("bias"), of_bias, got["bias"], rank=rank, mistakes=wrong)


def judge_row_output(run: ForwardBackward, rank: int, reference: LinearReference) -> Judgement:
    inputs, size, y = run.inputs[rank], run.size, reference.y
    bias = 0 if inputs["bias"] is None else inputs["bias"]
    partial_sum = inputs["x"] @ inputs["weight"].chunk(size, dim=1)[rank].T
    wrong = {
        "bias_on_every_rank": y + (size - 1) * bias,
        "forward_not_reduced": [partial_sum, partial_sum + bias, partial_sum + bias / size],
        "bias_forgotten": y - bias,
        "averaged": [y / size, (y - bias) / size + bias],
    }
    return expect_tensor(words["output"], y, run.outputs[rank]["y"], rank=rank, mistakes=wrong)


def recognise_row(failure: RunFailure) -> list[str]:
    """Reads from torch's error about a product how many features x had: those it was given, or a shard of them."""
    known = {"product": ["cut_across"], "bias": ["bias_cut"], "": []}[shape_error_of(failure.text)]
    product = re.search(r"\(\d+x(\d+) and \d+x\d+\)", failure.text)
    if product and int(product.group(1)) not in WIDTHS_PER_RANK:
        known = ["input_cut_again"] if int(product.group(1)) < min(WIDTHS_PER_RANK) else []
    return recognise_hidden_collective(failure) + known


ROW = Task(
    key="07.row",
    signature="RowParallelLinear(linear)",
    make_inputs=make_row,
    variations=LAYER_VARIATIONS,
    run_submission=run_layer,
    judge=judge_row,
    recognise_failure=recognise_row,
    hints=LAB.hints(
        "unknown_to_autograd no_gradient cut_across input_cut_again bias_cut gathers_the_input",
        "bias_on_every_rank bias_shared_out bias_on_one_rank not_parameters same_part_everywhere",
        "dealt_out not_cut view_of_the_whole forward_not_reduced bias_forgotten averaged",
        "backward_reduced gradients_reduced",
    ),
)
