"""Judges wb.softmax and wb.merge: attention over blocks of keys, one block at a time, and the merging of two blocks.

wb.softmax is the online softmax of FlashAttention, which may hold the scores of one block only; a MemoryMeter watches
the bytes of all tensors. wb.merge joins the results of two blocks of keys, as every hop of ring attention needs it.
Both are compared with attention over all keys at once. "lse" is the log of the sum of exp of a query's scores.

How to read it. A task has three functions, whose names begin with make, run and judge. The first draws the inputs of
one case with the generator `rng`; a case is one choice of memory layouts and values, numbered `rng.case.number`. The
second calls the learner's answer, `submitted`, and the third compares what it returned with the right values, yielding
one Judgement per comparison. There is one process, so `world.inputs[0]` and `world.outputs[0]` are all there is. The
mistakes that learners often make are in mistakes.yaml. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.kit.comparisons import expect
from helpers.grading.kit.merging import LARGE, draw_blocks, merge_task, moderate
from helpers.grading.kit.model_tools import MemoryMeter, one_thread
from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task, Variations
from helpers.grading.tensor_cases import CaseGenerator
from helpers.grading.whiteboard import LAB
from helpers.quantities.units import format_bytes

words = LAB.messages


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
    """The learner's output. A mark has the largest number of bytes that its tensors took at any time."""
    q, k, v = (inputs[name].clone() for name in "qkv")
    meter = MemoryMeter([q, k, v])
    with torch.no_grad(), one_thread(), meter:
        out = submitted(q, k, v, inputs["block"])
    context.mark(str(meter.peak_bytes))  # no output, since an answer with a known mistake may take any number of bytes
    return {"out": out.clone() if isinstance(out, Tensor) else None}


def judge_softmax(world: JudgedWorld) -> Iterator[Judgement]:
    """The output is right, and it took less memory than all scores do, if there are several blocks."""
    inputs, got = world.inputs[0], world.outputs[0]
    q, k, v = (inputs[name] for name in "qkv")
    right = (q @ k.mT / q.shape[1] ** 0.5).softmax(1) @ v
    yield expect_tensor(words["attention_output"], right, got["out"])
    peak, scores_bytes = int(world.marks[0][0][0]), len(q) * len(k) * q.itemsize
    message = words["scores_peak"].format(format_bytes(peak), format_bytes(scores_bytes))
    # Named here, since it is known by its bytes and not by what it returns.
    yield expect(len(k) <= inputs["block"] or peak < scores_bytes, message, mistakes=["scores_at_once"])


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
    return draw_blocks(rng, unseen={"a": [0], "b": [1]}, largest_lse=1000.0)


MERGE = merge_task(
    "wb.merge",
    make_inputs=make_merge,
    variations=Variations(layouts=("contiguous", "transposed"), values=("normal", "large"), min_cases=3),
)
