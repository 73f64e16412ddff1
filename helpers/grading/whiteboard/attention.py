"""Judges wb.softmax and wb.merge: attention over blocks of keys, one block at a time, and the merging of two blocks.

wb.softmax is the online softmax of FlashAttention, which may hold the scores of one block only; a MemoryMeter watches
the bytes of all tensors. wb.merge joins the results of two blocks of keys, as every hop of ring attention needs it.
Both are compared with attention over all keys at once. "lse" is the log of the sum of exp of a query's scores.

How to read it. A task has three functions, whose names begin with make, run and judge. The first draws the inputs of
one case with the generator `rng`; a case is one choice of memory layouts and values, numbered `rng.case.number`. The
second calls the learner's answer, `submitted`, and the third compares what it returned with the right values, yielding
one Judgement per comparison. There is one process, so `world.inputs[0]` and `world.outputs[0]` are all there is. A
mistake is a wrong solution that learners often write, and its name, such as "not_divided", is the key of its hint in
hints.yaml. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import SCALES, CaseGenerator, Variations
from helpers.grading.kit.comparisons import expect
from helpers.grading.kit.model_tools import MemoryMeter, one_thread
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.grading.whiteboard import LAB
from helpers.grading.whiteboard.values import judge_values
from helpers.quantities.units import format_bytes

words = LAB.messages

# The values that are judged: name -> how a sentence calls it.
OUTPUT = {"out": words["attention_output"]}
OUTPUT_AND_LSE = {"out": words["merged_output"], "lse": words["log_of_sum"]}
LARGE = 1e3  # a factor for the queries or scores, with which exp of a score overflows in float64


def moderate(rng: CaseGenerator, *shape: int) -> Tensor:
    """Normally distributed numbers, also in a case of large values, where only the scores are to be large."""
    values = rng.tensor(*shape)
    return values / SCALES["large"] if rng.case.values == "large" else values  # rng.tensor has multiplied by that


# -- wb.softmax ------------------------------------------------------------------------------------------------------
def make_softmax(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Queries q (queries, size), keys k and values v (keys, size), and the number of keys in a block.

    There are about 20 blocks with a short last one. In the third case blocks have one key; in the fourth there is one
    block, which is not full.
    """
    number = rng.case.number
    num_queries, size = rng.integer(16, 20), rng.integer(4, 5)
    block = 1 if number == 2 else rng.integer(5, 7)  # keys in a block
    if number == 2:
        num_keys = 130  # many, so that all scores would take more memory than whatever else an answer holds
    else:
        num_keys = block - 1 if number == 3 else 20 * block + rng.integer(2, block - 1)
    q, k, v = (moderate(rng, length, size) for length in (num_queries, num_keys, num_keys))
    if rng.case.values == "large":
        q *= LARGE
        q[0], k[:, 0] = 0.0, k[:, 0].abs() + 1
        q[0, 0] = -4 * LARGE  # all scores of the first query are below -1000, so that their exp is 0
    return [{"q": q, "k": k, "v": v, "block": block}]


def run_softmax(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The learner's output, and the largest number of bytes that its tensors took at any time."""
    q, k, v = (inputs[name].clone() for name in "qkv")
    meter = MemoryMeter([q, k, v])
    with torch.no_grad(), one_thread(), meter:
        out = submitted(q, k, v, inputs["block"])
    return {"out": out.clone() if isinstance(out, Tensor) else None, "peak": meter.peak_bytes}


def judge_softmax(world: JudgedWorld) -> Iterator[Judgement]:
    """The output is right, and it took less memory than all scores do, if there are several blocks."""
    inputs, got = world.inputs[0], world.outputs[0]
    q, k, v = (inputs[name] for name in "qkv")
    right = {"out": (q @ k.mT / q.shape[1] ** 0.5).softmax(1) @ v}
    mistakes = {key: {"out": online_softmax(inputs, key)} for key in RESCALING_MISTAKES} | other_mistakes(inputs)
    yield from judge_values(OUTPUT, right, got, mistakes)
    scores_bytes = len(q) * len(k) * q.itemsize
    peak, all_scores = format_bytes(got["peak"]), format_bytes(scores_bytes)
    message = words["scores_peak"].format(peak, all_scores)
    yield expect(len(k) <= inputs["block"] or got["peak"] < scores_bytes, message, mistakes=["scores_at_once"])


# The keys of the hints for the mistakes that `online_softmax` can make.
RESCALING_MISTAKES = (
    *("maximum_from_zero", "block_maximum", "sum_not_rescaled", "output_not_rescaled", "not_rescaled"),
    *("factor_inverted", "divided_in_loop", "not_divided"),
)


@one_thread()
def online_softmax(inputs: dict[str, Any], mistake: str) -> Tensor:
    """Attention over one block of keys after the other, right except for one mistake.

    When a larger maximum is found, the sum and the output so far must be rescaled by exp(old maximum - new maximum).
    """
    q, block = inputs["q"], inputs["block"]
    start = 0.0 if mistake == "maximum_from_zero" else -torch.inf
    maximum, total, out = torch.full((len(q), 1), start, dtype=q.dtype), torch.zeros(len(q), 1, dtype=q.dtype), 0.0
    for k, v in zip(inputs["k"].split(block), inputs["v"].split(block), strict=True):
        scores = q @ k.mT / q.shape[1] ** 0.5  # (queries, block)
        new_maximum = scores.amax(1, keepdim=True)
        if mistake != "block_maximum":
            new_maximum = torch.maximum(maximum, new_maximum)
        weights, factor = (scores - new_maximum).exp(), (maximum - new_maximum).exp()
        factor = 1 / factor if mistake == "factor_inverted" else factor
        sum_factor = 1 if mistake in ("sum_not_rescaled", "not_rescaled", "block_maximum") else factor
        out_factor = 1 if mistake in ("output_not_rescaled", "not_rescaled", "block_maximum") else factor
        total = total * sum_factor + weights.sum(1, keepdim=True)
        out = out * out_factor + weights @ v
        out = out / total if mistake == "divided_in_loop" else out
        maximum = new_maximum
    return out if mistake in ("not_divided", "divided_in_loop") else out / total


@one_thread()
def other_mistakes(inputs: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    """What the mistakes give that need no loop over blocks, by the key of the hint."""
    q, k, v, block = (inputs[name] for name in ("q", "k", "v", "block"))
    scores = q @ k.mT
    scaled = scores / q.shape[1] ** 0.5
    num_in_full_blocks = len(k) // block * block  # keys in blocks that are full
    parts = [a.softmax(1) @ b for a, b in zip(scaled.split(block, 1), v.split(block), strict=True)]
    weights = scaled.exp()
    in_full_blocks = scaled[:, :num_in_full_blocks].softmax(1) @ v[:num_in_full_blocks]  # 0 if no block is full
    values = {
        "mean_of_blocks": torch.stack(parts).mean(0),
        "one_block": parts[-1],
        "last_block_dropped": in_full_blocks,
        "scaled_by_size": (scores / q.shape[1]).softmax(1) @ v,
        "scaled_by_keys": (scores / len(k) ** 0.5).softmax(1) @ v,
        "over_queries": scaled.softmax(0) @ v,
        "not_scaled": scores.softmax(1) @ v,
        "overflows": weights @ v / weights.sum(1, keepdim=True),
    }
    return {key: {"out": value} for key, value in values.items()}


SOFTMAX = Task(
    key="wb.softmax",
    signature="attend(q, k, v, block)",
    make_inputs=make_softmax,
    run_submission=run_softmax,
    judge=judge_softmax,
    runs_on="process",
    variations=Variations(layouts=("contiguous", "transposed"), values=("normal", "large"), min_cases=4),
    must_not_change=("q",),  # not k and v: the meter would count the copies that are made to compare them
)


# -- wb.merge --------------------------------------------------------------------------------------------------------
def make_merge(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """The output and the lse of two blocks of keys, a and b.

    From the second case on, row 0 attends to no key of block a, and row 1 to none of block b.
    """
    rows, size, num_keys = rng.integer(5, 9), rng.integer(2, 4), rng.integer(2, 6)
    inputs: dict[str, Any] = {}
    for number, name in enumerate("ab"):
        scores = moderate(rng, rows, num_keys) * (LARGE if rng.case.values == "large" else 1)
        out, lse = scores.softmax(1) @ moderate(rng, num_keys, size), scores.logsumexp(1)
        if rng.case.number:
            out[number], lse[number] = 0.0, -torch.inf
        inputs |= {f"out_{name}": out, f"lse_{name}": lse}
    return [inputs]


def run_merge(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    """The learner's output and lse; None for what is no tensor."""
    with one_thread():
        result = submitted(*(inputs[name].clone() for name in ("out_a", "lse_a", "out_b", "lse_b")))
    pair = result if isinstance(result, tuple | list) and len(result) == 2 else (result, None)
    out, lse = (one.clone() if isinstance(one, Tensor) else None for one in pair)
    return {"out": out, "lse": lse}


def judge_merge(world: JudgedWorld) -> Iterator[Judgement]:
    """The merged output and lse are those of attention over both blocks."""
    inputs = world.inputs[0]
    (a, lse_a), (b, lse_b) = ((inputs[f"out_{name}"], inputs[f"lse_{name}"]) for name in "ab")
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a, weight_b = (lse_a - lse).exp()[:, None], (lse_b - lse).exp()[:, None]
    right = {"out": weight_a * a + weight_b * b, "lse": lse}
    mistakes = wrong_merges(a, lse_a, b, lse_b) | {
        "weights_exchanged": {"out": weight_b * a + weight_a * b},
        "added": {"out": a + b},
        "mean_of_both": {"out": (a + b) / 2},
    }
    yield from judge_values(OUTPUT_AND_LSE, right, world.outputs[0], mistakes)


def wrong_merges(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor) -> dict[str, dict[str, Tensor]]:
    """What the known mistakes with exponentials and logarithms give, by the key of the hint."""
    maximum = torch.maximum(lse_a, lse_b)
    exp_a, exp_b = lse_a.exp(), lse_b.exp()
    not_divided = (lse_a - maximum).exp()[:, None] * a + (lse_b - maximum).exp()[:, None] * b
    without_maximum = (exp_a[:, None] * a + exp_b[:, None] * b) / (exp_a + exp_b)[:, None]
    top = maximum.max()  # over all queries, so that both exponentials of a query may be 0
    low_a, low_b = ((one - top).exp()[:, None] for one in (lse_a, lse_b))
    without_exp = (lse_a[:, None] * a + lse_b[:, None] * b) / (lse_a + lse_b)[:, None]
    return {
        "overflows": {"out": without_maximum, "lse": (exp_a + exp_b).log()},
        "weights_without_exp": {"out": without_exp},
        "not_divided": {"out": not_divided},
        "larger_lse": {"lse": maximum},
        "lse_added": {"lse": lse_a + lse_b},
        "log_forgotten": {"lse": torch.logaddexp(lse_a, lse_b).exp()},
        "lse_averaged": {"lse": (lse_a + lse_b) / 2},
        "lse_missing": {"lse": None},
        "one_maximum": {"out": (low_a * a + low_b * b) / (low_a + low_b), "lse": (low_a + low_b).log()[:, 0] + top},
    }


MERGE = Task(
    key="wb.merge",
    signature="merge(out_a, lse_a, out_b, lse_b)",
    make_inputs=make_merge,
    run_submission=run_merge,
    judge=judge_merge,
    runs_on="process",
    variations=Variations(layouts=("contiguous", "transposed"), values=("normal", "large"), min_cases=3),
    must_not_change=("out_a", "lse_a", "out_b", "lse_b"),
)
