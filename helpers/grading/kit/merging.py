"""Judges functions that merge the attention over two blocks of keys: the drill wb.merge, and 13.merge.

`draw_blocks` draws what attention to each of two blocks, a and b, gives: the output of each query, and its "lse", the
log of the sum of exp of its scores, which is minus infinity where the query sees no key of the block. `merge_task`
builds the Task of a function `merge(out_a, lse_a, out_b, lse_b)` that returns both for the two blocks together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit.comparisons import expect
from helpers.grading.kit.model_tools import one_thread
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.grading.tensor_cases import SCALES, CaseGenerator, copied, with_layout
from helpers.learner.words import book

words = book("values")
ARGUMENTS = ("out_a", "lse_a", "out_b", "lse_b")
LARGE = 1e3  # a factor for the queries or scores, with which exp of a score overflows in float64
# The lse of one query in block a and in block b, where lse are large: in units of the largest, each up to small noise.
EXTREMES = ((-1, -1), (-1, -math.inf), (-math.inf, -1), (1, -1), (-1, 1), (1, 1))
SMALL_SHARE = 12.0  # by so much the lse of one query is smaller in one block; exp(-12) is small, but it is not 0


def moderate(rng: CaseGenerator, *shape: int) -> Tensor:
    """Normally distributed numbers, also in a case of large values, where only the scores are to be large."""
    values = rng.tensor(*shape)
    return values / SCALES["large"] if rng.case.values == "large" else values  # rng.tensor has multiplied by that


def draw_blocks(
    rng: CaseGenerator, *heads: int, unseen: Mapping[str, Sequence[int]], largest_lse: float
) -> list[dict[str, Any]]:
    """The output (heads, queries, size) and the lse (heads, queries) of each block. heads: their number, or nothing.

    unseen: for block "a" and block "b" the queries that see none of its keys; in the plain case all see some.
    largest_lse: what the lse of the EXTREMES are near to in a case of large values, with either sign.
    """
    num_unseen = 1 + max(query for queries in unseen.values() for query in queries)
    rows, size, num_keys = num_unseen + len(EXTREMES) + rng.integer(1, 3), rng.integer(2, 4), rng.integer(2, 6)
    inputs: dict[str, Any] = {}
    for block, (name, queries) in enumerate(unseen.items()):
        scores = moderate(rng, *heads, rows, num_keys) * (LARGE if rng.case.values == "large" else 1)
        out, lse = scores.softmax(-1) @ moderate(rng, *heads, num_keys, size), scores.logsumexp(-1)
        for query, of_blocks in enumerate(EXTREMES if rng.case.values == "large" else (), num_unseen):
            lse[..., query] = of_blocks[block] * largest_lse + rng.normal(*heads)
        if name == "b":
            lse[..., -1] = inputs["lse_a"][..., -1] - SMALL_SHARE
        for query in queries if rng.case.number else ():
            lse[..., query] = -torch.inf
        out = out.masked_fill((lse == -torch.inf)[..., None], 0.0)
        inputs |= {f"out_{name}": out, f"lse_{name}": lse}
    for tensor in inputs.values() if heads else ():
        tensor[-1] = tensor[-1].roll(1, 0)  # so that in the last head other queries see no key
    # Of the drawn scores only their values are used, so the layout is given to the arguments themselves.
    return [{name: with_layout(tensor, rng.case.layouts) for name, tensor in inputs.items()}]


def run_merge(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The learner's output and lse; None for what is no tensor."""
    with one_thread():
        result = submitted(*(copied(inputs[name]) for name in ARGUMENTS))
    pair = result if isinstance(result, tuple | list) and len(result) == 2 else (result, None)
    out, lse = (one.clone() if isinstance(one, Tensor) else None for one in pair)
    return {"out": out, "lse": lse}


def merged(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The right output and lse."""
    lse = torch.logaddexp(lse_a, lse_b)
    shift = lse.masked_fill(lse == -torch.inf, 0.0)  # exp(-inf - 0) is 0, and exp(-inf - -inf) would be NaN
    weight_a, weight_b = ((each - shift).exp()[..., None] for each in (lse_a, lse_b))
    return weight_a * out_a + weight_b * out_b, lse


def without_rounding_of_lse(right: Tensor, got: Any, largest_lse: float) -> Any:
    """The learner's output, with the right value wherever rounding the lse explains the difference.

    An lse of 3000 is rounded by up to 1e-4 in float32, and exp turns this into a relative error of every share.
    """
    if not isinstance(got, Tensor) or got.shape != right.shape or got.dtype != right.dtype:
        return got
    allowed = 4 * torch.finfo(right.dtype).eps * largest_lse * right.abs().max()
    return torch.where((got - right).abs() <= allowed, right, got)


def judge_merge(world: JudgedWorld) -> Iterator[Judgement]:
    """The merged output and lse are those of attention over both blocks."""
    inputs, got = world.inputs[0], world.outputs[0]
    dtype = inputs["lse_a"].dtype
    out, lse = (each.to(dtype) for each in merged(*(inputs[name].double() for name in ARGUMENTS)))
    largest_lse = max(inputs[name].nan_to_num(neginf=0.0).abs().max().item() for name in ("lse_a", "lse_b"))
    given = without_rounding_of_lse(out, got["out"], largest_lse)
    yield expect_tensor(words["merged_output"], out, given)
    unseen, given = lse == -torch.inf, got["lse"]
    if isinstance(given, Tensor) and given.shape == lse.shape and unseen.any():
        wrong = given[unseen & (given != -torch.inf)].tolist()
        yield expect(not wrong, words["lse_of_unseen"].format(wrong[0] if wrong else ""))
        lse, given = lse.masked_fill(unseen, 0.0), given.masked_fill(unseen, 0.0)  # the others are compared here
    yield expect_tensor(words["log_of_sum"], lse, given)


def merge_task(key: str, **more: Any) -> Task:
    """The Task of a function that merges two blocks. more: make_inputs, and whatever else a Task has."""
    return Task(
        key=key,
        signature=f"merge({', '.join(ARGUMENTS)})",
        run_submission=run_merge,
        judge=judge_merge,
        runs_on="process",
        must_not_change=ARGUMENTS,
        **more,
    )
