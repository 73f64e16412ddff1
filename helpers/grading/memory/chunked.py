"""05.chunked: cross entropy whose logits never exist at once, in chunks of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.grading.kit import making
from helpers.grading.kit.judging import expect, expect_tensor
from helpers.grading.kit.meter import Meter, dead_end, one_thread
from helpers.grading.memory import hints
from helpers.grading.task import Finding, Task, Trial, World
from helpers.units import format_bytes
from helpers.words import Words

PADDING = -100
ROOM = 8  # chunks of logits that may be held at once: log-softmax, its gradient, a copy or two
COPIES = 5  # of the gradients of hidden and weight


def make(rng: torch.Generator, world_size: int) -> list[dict[str, Any]]:
    """Three: many chunks with different shares of padding; one chunk of nothing else; fewer tokens than a chunk."""
    hidden, vocab, chunk = making.integer(rng, 7, 9), making.integer(rng, 250, 300), making.integer(rng, 14, 17)
    weight, factor = making.normal(rng, vocab, hidden), 1.5 + making.integer(rng, 1, 9) / 10
    cases = []
    for num_tokens, is_empty in (
        (25 * chunk + making.integer(rng, 3, 9), False),
        (3 * chunk, True),
        (chunk - 5, False),
    ):
        share = torch.linspace(0.1, 0.7, num_tokens)
        is_padding = torch.rand(num_tokens, generator=rng) < share
        is_padding[-1] = False
        if is_empty:
            is_padding[chunk : 2 * chunk] = True
        targets = torch.randint(vocab, (num_tokens,), generator=rng).masked_fill(is_padding, PADDING)
        cases.append({"x": making.normal(rng, num_tokens, hidden), "targets": targets})
    return [{"weight": weight, "factor": factor, "chunk": chunk, "cases": cases}]


def act(submitted, inputs: dict[str, Any], trial: Trial) -> list[dict[str, Any]]:
    return [measured(submitted, inputs, case) for case in inputs["cases"]]


@one_thread()
def measured(submitted, inputs: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """Loss, gradients and bytes of forward and backward; the loss is multiplied before backward, as a scaler does."""
    x, weight = (value.clone().requires_grad_() for value in (case["x"], inputs["weight"]))
    targets = case["targets"].clone()
    with Meter([x, weight, targets]) as meter:
        loss = submitted(x, weight, targets, inputs["chunk"])
        if dead_end(loss):
            return {"returned": dead_end(loss)}
        result = loss.detach().clone()
        (inputs["factor"] * loss).backward()
        del loss
        peak = meter.peak
    return {"loss": result, "x": x.grad, "weight": weight.grad, "peak": peak, "largest": meter.largest}


def usual(x: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """With all logits at once."""
    return F.cross_entropy(x @ weight.T, targets, ignore_index=PADDING)


def judge(world: World) -> Iterator[Finding]:
    inputs = world.inputs[0]
    returned = next((got["returned"] for got in world.outputs[0] if "returned" in got), None)
    if returned:
        yield Finding(ok=False, says=RETURNED.format(returned), mistakes=("detached_output",))
        return
    for case, got in zip(inputs["cases"], world.outputs[0], strict=True):
        right, wrong = measured(usual, inputs, case), mistaken(inputs, case)
        wrong["chunk_of_padding"] = {"loss": torch.full((), torch.nan, dtype=torch.float64)}
        for name, what in NAMES.items():
            known = {key: values[name] for key, values in wrong.items() if name in values}
            yield judge_value(what, right[name], got[name], known)
    yield judge_peak(inputs, world.outputs[0][0])


def judge_value(what: Words, right: Tensor, got: Any, known: dict[str, Any]) -> Finding:
    """As expect_tensor; where NaN came, it says what gives NaN here."""
    if isinstance(got, Tensor) and got.is_floating_point() and got.isnan().any():
        en, zh = f"{what.en} is NaN", f"{what.zh}是 NaN"
        return expect(False, en, zh, mistakes=["chunk_of_padding"])
    return expect_tensor(what, right, got, mistakes=known)


def judge_peak(inputs: dict[str, Any], got: dict[str, Any]) -> Finding:
    """In chunks of logits, beside room for a few copies of both gradients."""
    num_tokens, vocab = len(inputs["cases"][0]["x"]), len(inputs["weight"])
    one, all_of_them = 8 * inputs["chunk"] * vocab, 8 * num_tokens * vocab
    gradients = COPIES * 8 * (inputs["weight"].numel() + inputs["cases"][0]["x"].numel())
    mine, chunk, whole = (format_bytes(number) for number in (got["peak"], one, all_of_them))
    return expect(
        got["peak"] <= ROOM * one + gradients,
        f"it holds {mine} at its peak; the logits of a chunk are {chunk}, those of all tokens {whole}",
        f"峰值占用 {mine}；一块的 logits 是 {chunk}，全部 token 的是 {whole}",
        mistakes=["logits_at_once" if got["largest"] >= all_of_them else "logits_kept"],
    )


@one_thread()
def mistaken(inputs: dict[str, Any], case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the known mistakes give for the loss and both gradients."""
    chunk, counted = inputs["chunk"], case["targets"] != PADDING
    starts = range(0, len(counted), chunk)
    counts = [int(counted[start : start + chunk].sum()) for start in starts]
    total, whole = sum(counts), len(counted) // chunk
    means = [1 / (count * len(counts)) if count else 0.0 for count in counts]
    cut_off = [1.0] * whole + [0.0] * (len(counts) - whole)
    last = [0.0] * (len(counts) - 1) + [1 / total]
    per_chunk = [parts_of(inputs, case, start) for start in starts]
    right = weighed(per_chunk, [1 / total] * len(counts))
    return {
        "incoming_gradient_forgotten": {name: right[name] / inputs["factor"] for name in ("x", "weight")},
        "weight_gradient_of_one_chunk": {"weight": weighed(per_chunk, last)["weight"]},
        "weight_gets_nothing": {"weight": None},
        "last_chunk_dropped": weighed(per_chunk, [f / total for f in cut_off]),
        "mean_of_means": weighed(per_chunk, means),
        "padding_counted": weighed(per_chunk, [1 / len(counted)] * len(counts)),
        "not_divided": weighed(per_chunk, [1.0] * len(counts)),
    }


def parts_of(inputs: dict[str, Any], case: dict[str, Any], start: int) -> dict[str, Tensor]:
    """Summed loss of one chunk, and the gradients that it gives with the check's factor."""
    x, weight = (value.clone().requires_grad_() for value in (case["x"], inputs["weight"]))
    rows = slice(start, start + inputs["chunk"])
    loss = F.cross_entropy(x[rows] @ weight.T, case["targets"][rows], ignore_index=PADDING, reduction="sum")
    (inputs["factor"] * loss).backward()
    return {"loss": loss.detach(), "x": x.grad, "weight": weight.grad}


def weighed(parts: list[dict[str, Tensor]], factors: list[float]) -> dict[str, Tensor]:
    return {name: sum(f * part[name] for part, f in zip(parts, factors, strict=True)) for name in parts[0]}


NAMES = {
    "loss": Words(en="the loss", zh="损失"),
    "x": Words(en="the gradient of x", zh="x 的梯度"),
    "weight": Words(en="the gradient of weight", zh="weight 的梯度"),
}
RETURNED = Words(
    en="chunked_cross_entropy returns {}, expected a tensor that follows gradients",
    zh="chunked_cross_entropy 返回的是 {}，应为带梯度的张量",
)
CHUNKED = Task(
    key="05.chunked",
    signature="chunked_cross_entropy(x, weight, targets, chunk)",
    make=make,
    act=act,
    judge=judge,
    hints=hints.of(
        "detached_output",
        "last_chunk_dropped",
        "mean_of_means",
        "padding_counted",
        "not_divided",
        "chunk_of_padding",
        "weight_gets_nothing",
        "weight_gradient_of_one_chunk",
        "incoming_gradient_forgotten",
        "logits_at_once",
        "logits_kept",
    ),
    world_sizes=(1,),
    unit="device",
)
