"""Judges 07.identity_all_reduce and 07.all_reduce_identity, the operators that Megatron calls f and g.

f passes x on in forward and all-reduces the gradient in backward; g does the opposite. A check computes f(x) + x + r on
live ranks, where r is another tensor of the shape of x. Autograd passes one gradient tensor to all three terms, so an
operator that changes it in place changes the gradients of x and r as well. Outputs, gradients and messages are compared
with one process.

From forward_backward.py: a `ForwardBackward` is one case as it ran on all ranks: inputs and outputs with one item per
rank, and the messages of each pass. The decorator `judges_both_passes` makes a task's judge of a function that judges a
ForwardBackward. `by_case_number(rng, a, b)` is a in the first case, b in the second, and so on in turn; `draw_exact`
draws a tensor whose sums are exact. `run_backward` starts backward from an output, and `expect_messages` judges the
messages of one pass.

How to read it. Each task has three functions. `make_…` draws the inputs of every rank for one case, `run_…` calls the
learner's answer, `submitted`, on one rank, and `judge_…` runs in another process: it compares what the ranks returned
with the right values, and yields one Judgement per comparison. A case is one choice of sizes, dtypes and memory layouts
(`rng.case`), and `rng` draws the numbers. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.task import Judgement, RankContext, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator
from helpers.grading.tensor_parallel import LAB
from helpers.grading.tensor_parallel.forward_backward import (
    BACKWARD,
    FORWARD,
    PASSES,
    ForwardBackward,
    all_reduce,
    by_case_number,
    draw_exact,
    expect_messages,
    judges_both_passes,
    recognise_hidden_collective,
    run_backward,
)

words = LAB.messages

F_NAME, G_NAME = "identity_all_reduce", "all_reduce_identity"  # named by what they do in forward, then in backward


def make_f(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """x is the same on every rank, as the input of a column-parallel layer is; the gradients differ."""
    x = draw_exact(rng, *draw_shape(rng))
    return [{"x": x, "gradient": draw_exact(rng, *x.shape)} for _ in range(world_size)]


def make_g(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """x is another partial sum on every rank."""
    shape = draw_shape(rng)
    return [{"x": draw_exact(rng, *shape), "gradient": draw_exact(rng, *shape)} for _ in range(world_size)]


def draw_shape(rng: CaseGenerator) -> list[int]:
    """Two dimensions in case 0, three in case 1, one in case 2."""
    return [rng.integer(2, 6) for _ in range(by_case_number(rng, 2, 3, 1))]


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Runs forward and backward through submitted(x) + r + x; r has the values of x.

    Autograd gives the same gradient tensor to all three terms, to submitted(x) first. An answer that changes it in
    place therefore changes the gradients of r and x. Neither x nor r is a leaf of the graph, because no input of a
    layer inside a model is one. At the `yield` another case may run.
    """
    leaf, r_leaf = (inputs["x"].clone().requires_grad_() for _ in range(2))
    x, r = leaf * 1.0, r_leaf * 1.0
    y = submitted(x)
    context.mark(FORWARD)
    output = y.detach().clone() if isinstance(y, torch.Tensor) else y
    # If not, backward starts from y alone, and the judge says what is wrong with it.
    can_add = isinstance(y, torch.Tensor) and y.requires_grad and y.shape == r.shape
    yield
    returned_instead = run_backward(context, [y + r + x if can_add else y], [inputs["gradient"].clone()])
    gradients = {"x_gradient": leaf.grad, "r_gradient": r_leaf.grad}
    return {"returned_instead": returned_instead, "y": output, "x": x} | gradients


def passed_back(got: dict[str, Any], gradient: torch.Tensor) -> Any:
    """The gradient of x that the operator's backward returned, without the part that the term `+ x` gets."""
    return got["x_gradient"] - gradient if isinstance(got["x_gradient"], torch.Tensor) else got["x_gradient"]


@judges_both_passes(F_NAME)
def judge_f(run: ForwardBackward) -> Iterator[Judgement]:
    """Every rank gets x, and backward returns the sum of all ranks' gradients."""
    total = sum(one["gradient"] for one in run.inputs)
    right = [(one["x"], total) for one in run.inputs]
    yield from judge_operator(run, "f", right, BACKWARD)


@judges_both_passes(G_NAME)
def judge_g(run: ForwardBackward) -> Iterator[Judgement]:
    """Every rank gets the sum of all ranks' x, and backward returns the incoming gradient."""
    total = sum(one["x"] for one in run.inputs)
    right = [(total, one["gradient"]) for one in run.inputs]
    yield from judge_operator(run, "g", right, FORWARD)


def judge_operator(
    run: ForwardBackward, task: str, right: Sequence[tuple[torch.Tensor, torch.Tensor]], pass_with_message: str
) -> Iterator[Judgement]:
    """Compares what every rank has. right: for each rank its output, and the gradient that backward returns.

    task: "f" or "g". The call leaves x as it was, and backward the incoming gradient, which r gets as well.
    """
    for rank, (one, got, (output, back)) in enumerate(zip(run.inputs, run.outputs, right, strict=True)):
        yield expect_tensor(words[f"output.{task}"], output, got["y"], rank=rank)
        yield expect_tensor(words[f"passed_back.{task}"], back, passed_back(got, one["gradient"]), rank=rank)
        yield expect_tensor(words["gradient_through_r"], one["gradient"], got["r_gradient"], rank=rank)
        yield expect_tensor(words["x_after"], one["x"], got["x"], rank=rank)
    for name in PASSES:
        allowed = [all_reduce(run.inputs[0]["x"].nbytes)] if name == pass_with_message else []
        yield from expect_messages(run, task, name, allowed, gather="gathers_the_parts")


IDENTITY_ALL_REDUCE = Task(
    key=f"07.{F_NAME}",
    signature=f"{F_NAME}(x)",
    make_inputs=make_f,
    variations=Variations(
        dtypes=("float64", "float32", "bfloat16"), layouts=("contiguous", "transposed"), values=("normal", "zero")
    ),
    run_submission=run_submission,
    judge=judge_f,
    recognise_failure=recognise_hidden_collective,
)
ALL_REDUCE_IDENTITY = dataclasses.replace(
    IDENTITY_ALL_REDUCE,
    key=f"07.{G_NAME}",
    signature=f"{G_NAME}(x)",
    make_inputs=make_g,
    judge=judge_g,
)
