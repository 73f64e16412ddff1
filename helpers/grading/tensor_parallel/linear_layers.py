"""Judges 07.column and 07.row: a linear layer y = x A of which each rank holds a shard of A.

ColumnParallelLinear holds some columns of A and returns a part of y; RowParallelLinear holds some rows of A and returns
the all-reduced y. nn.Linear stores A transposed, so columns of A are rows of its weight. forward_backward.py runs the
learner's layer on live ranks; here its parameters, outputs, gradients and messages are compared with one process.

From forward_backward.py: `run_layer` runs the learner's layer, for which LAYER_VARIATIONS names the cases. A
`ForwardBackward` is one case as it ran on all ranks: inputs and outputs with one item per rank, and the messages of
each pass. The decorator `judges_both_passes` makes a task's judge of a function that judges a ForwardBackward. A
`LinearReference` has the output and the gradients of the full layer in one process. The functions `judge_…` that are
imported judge what both layers must do alike. `by_case_number(rng, a, b)` is a in the first case, b in the second, and
so on in turn; `draw_exact` draws a tensor whose sums are exact.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. A mistake is a wrong solution that learners often write. Its name, such as
"not_cut", is the key of its hint in hints.yaml; "cut" means split there, so "cut_across" splits the weight along the
other dimension, and "bias_cut" splits a bias that every rank must add in full. The `expect…` functions compare one
value; their `mistakes` maps such keys to the value that the mistake gives. `words[…]` is a text of messages.yaml, in
English and Chinese.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from helpers.grading.cases import CaseGenerator
from helpers.grading.kit.comparisons import expect_tensor, is_close
from helpers.grading.task import Judgement, RunFailure, Task
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
    error_about,
    expect_messages,
    has_all_gather,
    judge_behaviour,
    judge_gradient,
    judge_parameter,
    judges_both_passes,
    keys_by_passes,
    recognise_hidden_collective,
    run_layer,
    unreduced_key,
)
from helpers.records import CommEvent

words = LAB.messages


# -- 07.column -------------------------------------------------------------------------------------------------------
def make_column(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """One full layer whose output features the ranks divide; in case 1 each rank has a single one.

    in_features is odd, so that an even number of ranks cannot split the weight along the wrong dimension. Each rank
    gets the same x, and the gradient of its part of y.
    """
    in_features, out_features = 2 * rng.integer(2, 4) + 1, world_size * by_case_number(rng, 3, 1, 4, rng.integer(2, 5))
    layer, leading = draw_linear(rng, in_features, out_features), draw_leading_shape(rng)
    x = draw_exact(rng, *leading, in_features)
    gradients = [draw_exact(rng, *leading, out_features // world_size) for _ in range(world_size)]
    return [layer | {"x": x, "gradient": gradient} for gradient in gradients]


@judges_both_passes("layer(x)")
def judge_column(run: ForwardBackward) -> Iterator[Judgement]:
    """No message in forward; in backward one all-reduce of the gradient of x for each batch."""
    inputs = run.inputs[0]
    gradient = torch.cat([one["gradient"] for one in run.inputs], dim=-1)
    reference = LinearReference(inputs["x"], inputs["weight"], inputs["bias"], gradient)
    for rank in range(run.size):
        yield from judge_column_rank(run, rank, reference)
    keys = keys_by_passes(run, BACKWARD)
    num_tensors = 2 if inputs["bias"] is None else 3  # x, the weight and the bias

    def mistakes_of_forward(events: Sequence[CommEvent]) -> list[str]:
        return ["gathers_the_output"] if has_all_gather(events) else keys

    def mistakes_of_backward(events: Sequence[CommEvent]) -> list[str]:
        return ["gradients_reduced"] if len(events) == NUM_BATCHES * num_tensors else keys

    right = [all_reduce(inputs["x"][0].nbytes)] * NUM_BATCHES
    yield from expect_messages(run, "column", FORWARD, [], mistakes_of=mistakes_of_forward)
    yield from expect_messages(run, "column", BACKWARD, right, mistakes_of=mistakes_of_backward)


def judge_column_rank(run: ForwardBackward, rank: int, reference: LinearReference) -> Iterator[Judgement]:
    """The parameters, output and gradients of one rank."""
    inputs, got, size = run.inputs[rank], run.outputs[rank], run.size
    parts = reference.y.chunk(size, dim=-1)  # the right output of each rank
    bias = 0 if inputs["bias"] is None else inputs["bias"].chunk(size)[rank]
    for name in ("weight", "bias"):
        if inputs[name] is not None:
            yield from judge_parameter(run, rank, name, inputs[name], 0)
    wrong = {"bias_forgotten": parts[rank] - bias, "forward_reduced": sum(parts)}
    wrong |= {"gathers_the_output": reference.y} if has_all_gather(run.events[rank][FORWARD]) else {}
    yield expect_tensor(words["output.column"], parts[rank], got["y"], rank=rank, mistakes=wrong)
    yield from judge_behaviour(run, rank, parts[rank])
    of_x = reference.gradients["x"]
    local = inputs["gradient"] @ inputs["weight"].chunk(size)[rank]  # this rank's partial sum of the gradient of x
    wrong = {unreduced_key(run, rank, BACKWARD): local, "averaged": of_x / size}
    wrong |= {"nothing_passed_back": None} if is_close(parts[rank], got["y"]) else {}
    yield expect_tensor(words["gradient.column.x"], of_x, got["x_gradient"], rank=rank, mistakes=wrong)
    for name in got["gradients"].keys() & reference.gradients.keys():  # "weight", and "bias" if the layer has one
        shards = reference.gradients[name].chunk(size)
        wrong = {"gradients_reduced": [sum(shards), sum(shards) / size]}
        yield judge_gradient(run, rank, "column", name, shards[rank], parts[rank], wrong)


def recognise_column(failure: RunFailure) -> list[str]:
    """The hints that fit torch's error about a product or a bias, or a hidden collective."""
    known = {"dtype": ["other_dtype"], "product": ["cut_across"], "bias": ["bias_not_cut"], "": []}
    return recognise_hidden_collective(failure) + known[error_about(failure.text)]


COLUMN = Task(
    key="07.column",
    signature="ColumnParallelLinear(linear)",
    make_inputs=make_column,
    variations=LAYER_VARIATIONS,
    run_submission=run_layer,
    judge=judge_column,
    recognise_failure=recognise_column,
)

# -- 07.row ----------------------------------------------------------------------------------------------------------
# Features of x on a rank. A common mistake is to split x once more, though each rank already gets its own features.
# On 2 to 5 ranks that leaves 1 to 4 features, which is neither 5 nor 7, so the shapes in torch's error show the
# mistake.
WIDTHS_PER_RANK = (5, 7)


def make_row(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Each rank gets other features of x and the same gradient of y; in case 2 the layer has a single output."""
    width, out_features = rng.one_of(*WIDTHS_PER_RANK), by_case_number(rng, 3, 4, 1, rng.integer(2, 4))
    layer, leading = draw_linear(rng, world_size * width, out_features), draw_leading_shape(rng)
    gradient = draw_exact(rng, *leading, out_features)
    return [layer | {"x": draw_exact(rng, *leading, width), "gradient": gradient} for _ in range(world_size)]


@judges_both_passes("layer(x)")
def judge_row(run: ForwardBackward) -> Iterator[Judgement]:
    """In forward one all-reduce of the output for each batch; no message in backward."""
    inputs = run.inputs[0]
    x = torch.cat([one["x"] for one in run.inputs], dim=-1)
    reference = LinearReference(x, inputs["weight"], inputs["bias"], inputs["gradient"])
    for rank in range(run.size):
        yield from judge_row_rank(run, rank, reference)

    keys = keys_by_passes(run, FORWARD)

    def mistakes_of_forward(events: Sequence[CommEvent]) -> list[str]:
        return ["gathers_the_input"] if has_all_gather(events) else keys

    def mistakes_of_backward(events: Sequence[CommEvent]) -> list[str]:
        """By the number of messages: one for each batch, or one for each parameter, of one batch or of both."""
        num_parameters = 1 if inputs["bias"] is None else 2
        for_parameters = len(events) in (num_parameters, NUM_BATCHES * num_parameters)
        return ["gradients_reduced"] if for_parameters and len(events) != NUM_BATCHES else keys

    right = [all_reduce(reference.y[0].nbytes)] * NUM_BATCHES
    yield from expect_messages(run, "row", FORWARD, right, mistakes_of=mistakes_of_forward)
    yield from expect_messages(run, "row", BACKWARD, [], mistakes_of=mistakes_of_backward)


def judge_row_rank(run: ForwardBackward, rank: int, reference: LinearReference) -> Iterator[Judgement]:
    """The parameters, output and gradients of one rank."""
    inputs, got, size = run.inputs[rank], run.outputs[rank], run.size
    bias = inputs["bias"]
    yield from judge_parameter(run, rank, "weight", inputs["weight"], 1)
    if bias is not None:
        # Where a rank has no bias, it is on rank 0 alone, or is no parameter if rank 0 has none either.
        missing = "bias_on_one_rank" if rank else "not_parameters"
        yield from judge_parameter(run, rank, "bias", bias, None, {"bias_shared_out": bias / size, missing: None})
    yield judge_row_output(run, rank, reference)
    yield from judge_behaviour(run, rank, reference.y)
    of_x = reference.gradients["x"].chunk(size, dim=-1)[rank]
    mistakes = {"backward_reduced": of_x * size, "averaged": of_x / size}
    mistakes |= {"nothing_passed_back": None} if is_close(reference.y, got["y"]) else {}
    yield expect_tensor(words["gradient.row.x"], of_x, got["x_gradient"], rank=rank, mistakes=mistakes)
    yield from judge_row_gradients(run, rank, reference)


def judge_row_gradients(run: ForwardBackward, rank: int, reference: LinearReference) -> Iterator[Judgement]:
    """The gradients of the weight's shard and of the bias, of which every rank has all."""
    got, size, y = run.outputs[rank]["gradients"], run.size, reference.y
    of_weight, of_bias = reference.gradients["weight"].chunk(size, dim=1)[rank], reference.gradients.get("bias")
    if "weight" in got:
        yield judge_gradient(
            run,
            rank,
            "row",
            "weight",
            of_weight,
            y,
            {"backward_reduced": of_weight * size, "averaged": of_weight / size},
        )
    if of_bias is not None and "bias" in got:
        wrong = {
            "bias_shared_out": of_bias / size,
            "bias_on_one_rank": [None, of_bias * 0] if rank else [],  # rank 0 has the bias, so its gradient is right
            "gradients_reduced": of_bias * size,
        }
        yield judge_gradient(run, rank, "row", "bias", of_bias, y, wrong)


def judge_row_output(run: ForwardBackward, rank: int, reference: LinearReference) -> Judgement:
    """The output, the same on every rank."""
    inputs, size, y = run.inputs[rank], run.size, reference.y
    bias = 0 if inputs["bias"] is None else inputs["bias"]
    partial_sum = inputs["x"] @ inputs["weight"].chunk(size, dim=1)[rank].T
    is_right_elsewhere = any(is_close(y, one["y"]) for one in run.outputs)  # then some rank has added its bias
    wrong = {
        "bias_on_every_rank": y + (size - 1) * bias,
        unreduced_key(run, rank, FORWARD): [partial_sum, partial_sum + bias, partial_sum + bias / size],
        "bias_on_one_rank" if is_right_elsewhere else "bias_forgotten": y - bias,
        "averaged": [y / size, (y - bias) / size + bias],
    }
    return expect_tensor(words["output.row"], y, run.outputs[rank]["y"], rank=rank, mistakes=wrong)


def recognise_row(failure: RunFailure) -> list[str]:
    """Reads from torch's error about a product how many features x had: WIDTHS_PER_RANK, or fewer if split again."""
    known = {"dtype": ["other_dtype"], "product": ["cut_across"], "bias": ["bias_cut"], "": []}[
        error_about(failure.text)
    ]
    product = re.search(r"\(\d+x(\d+) and \d+x\d+\)", failure.text)  # "(6x2 and 5x4)": x has 2 features
    if product and int(product.group(1)) not in WIDTHS_PER_RANK:
        known = ["input_cut_again"] if int(product.group(1)) < min(WIDTHS_PER_RANK) else []
    return recognise_hidden_collective(failure) + known


ROW = dataclasses.replace(
    COLUMN,
    key="07.row",
    signature="RowParallelLinear(linear)",
    make_inputs=make_row,
    judge=judge_row,
    recognise_failure=recognise_row,
)
