"""wb.softmax: attention over blocks of keys, in one walk, with scores of one block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.kit.comparisons import expect
from helpers.grading.kit.model_tools import MemoryMeter, one_thread
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.grading.whiteboard import LAB
from helpers.grading.whiteboard.values import judged
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

NAMES = {"out": Words(en="the output", zh="输出")}
LARGE = 1e3  # times: exp of such a score overflows in float64


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Many blocks of which the last is short; large scores; blocks of one key; one block that is not full."""
    number = rng.case.number
    queries, size = rng.integer(16, 20), rng.integer(4, 5)
    block = 1 if number == 2 else rng.integer(5, 7)
    keys = block - 1 if number == 3 else 130 if number == 2 else 20 * block + rng.integer(2, block - 1)
    q, k, v = (drawn(rng, length, size) for length in (queries, keys, keys))
    return [{"q": q * (LARGE if rng.case.values == "large" else 1), "k": k, "v": v, "block": block}]


def drawn(rng: CaseGenerator, *shape: int) -> Tensor:
    values = rng.tensor(*shape)
    return values / 1e6 if rng.case.values == "large" else values


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> dict[str, Any]:
    q, k, v = (inputs[name].clone() for name in "qkv")
    meter = MemoryMeter([q, k, v])
    with torch.no_grad(), one_thread(), meter:
        out = submitted(q, k, v, inputs["block"])
    return {"out": out.clone() if isinstance(out, Tensor) else None, "peak": meter.peak_bytes}


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    inputs, got = world.inputs[0], world.outputs[0]
    q, k, v = (inputs[name] for name in "qkv")
    right = {"out": (q @ k.mT / q.shape[1] ** 0.5).softmax(1) @ v}
    yield from judged(NAMES, right, got, {key: {"out": walk(inputs, key)} for key in WALKS} | others(inputs))
    whole = len(q) * len(k) * q.itemsize
    held, all_scores = format_bytes(got["peak"]), format_bytes(whole)
    yield expect(
        len(k) <= inputs["block"] or got["peak"] < whole,
        f"it holds {held} at its peak; all scores are {all_scores}, and one block of them is to be there at a time",
        f"峰值占用 {held}；全部分数是 {all_scores}，而同一时刻只应有一块分数",
        mistakes=["scores_at_once"],
    )


WALKS = ("sum_not_rescaled", "output_not_rescaled", "not_rescaled", "not_divided")


@one_thread()
def walk(inputs: dict[str, Any], mistake: str) -> Tensor:
    """The right walk over the blocks, but for one mistake."""
    q, block = inputs["q"], inputs["block"]
    top, total, out = torch.full((len(q), 1), -torch.inf, dtype=q.dtype), 0.0, 0.0
    for k, v in zip(inputs["k"].split(block), inputs["v"].split(block), strict=True):
        scores = q @ k.mT / q.shape[1] ** 0.5  # (queries, block)
        new = torch.maximum(top, scores.amax(1, keepdim=True))
        weights, factor = (scores - new).exp(), (top - new).exp()
        total = total * (1 if mistake in ("sum_not_rescaled", "not_rescaled") else factor) + weights.sum(
            1, keepdim=True
        )
        out = out * (1 if mistake in ("output_not_rescaled", "not_rescaled") else factor) + weights @ v
        top = new
    return out if mistake == "not_divided" else out / total


@one_thread()
def others(inputs: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    q, k, v, block = (inputs[name] for name in ("q", "k", "v", "block"))
    scores = q @ k.mT
    scaled = scores / q.shape[1] ** 0.5
    whole = len(k) // block * block
    parts = [a.softmax(1) @ b for a, b in zip(scaled.split(block, 1), v.split(block), strict=True)]
    weights = scaled.exp()
    values = {
        "mean_of_blocks": torch.stack(parts).mean(0),
        "last_block_dropped": scaled[:, :whole].softmax(1) @ v[:whole] if whole else scaled.new_zeros(q.shape),
        "not_scaled": scores.softmax(1) @ v,
        "overflows": weights @ v / weights.sum(1, keepdim=True),
    }
    return {key: {"out": value} for key, value in values.items()}


SOFTMAX = Task(
    key="wb.softmax",
    signature="attend(q, k, v, block)",
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints(
        "overflows",
        "mean_of_blocks",
        "not_rescaled",
        "sum_not_rescaled",
        "output_not_rescaled",
        "not_divided",
        "last_block_dropped",
        "not_scaled",
        "scores_at_once",
    ),
    world_sizes=(1,),
    runs_on="process",
    variations=Variations(layouts=("contiguous", "transposed"), values=("normal", "large"), min_cases=4),
    must_not_change=("q",),  # copies of k and v, made to compare them, would be counted as held
)
