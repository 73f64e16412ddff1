"""05.chunked: cross entropy whose logits never exist at once, in chunks of tokens.

Two losses are made before the first one goes back, so what the function keeps must belong to its call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from helpers.grading.drawing import CaseGenerator, Variations
from helpers.grading.kit.judging import expect, expect_tensor, is_close
from helpers.grading.kit.meter import MemoryMeter, describe_if_detached, one_thread
from helpers.grading.memory import LAB
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words
from helpers.quantities.units import format_bytes

PADDING = -100
ROOM = 8  # chunks of logits that may be held at once: log-softmax, its gradient, a copy or two
COPIES = 5  # of the gradients of hidden and weight
WIDE = 2  # times the bytes of a chunk's logits: in float64 for float32, or a one-hot matrix of whole numbers


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Many chunks with different shares of padding; full ones, one of padding alone; chunks of 1; one chunk."""
    number = rng.case.number
    hidden, vocab = rng.integer(4, 5), rng.integer(250, 300)
    chunk = 1 if number == 2 else rng.integer(14, 17)
    num_tokens = (25 * chunk + rng.integer(3, 9), 3 * chunk, rng.integer(18, 24), chunk - 5)[number]
    is_padding = torch.rand(num_tokens, generator=rng) < torch.linspace(0.1, 0.7, num_tokens)
    is_padding[-1] = False
    if number == 1:
        is_padding[chunk : 2 * chunk] = True
    targets = torch.randint(vocab, (num_tokens,), generator=rng).masked_fill(is_padding, PADDING)
    targets[-1] = 0
    inputs = {"x": drawn(rng, num_tokens, hidden), "weight": drawn(rng, vocab, hidden), "targets": targets}
    return [inputs | {"factor": 1.5 + rng.integer(1, 9) / 10, "chunk": chunk}]


def drawn(rng: CaseGenerator, *shape: int) -> Tensor:
    """Of large ones exp of a logit overflows."""
    values = rng.tensor(*shape)
    return values / 3e4 if rng.case.values == "large" else values


def run_submission(submitted, inputs: dict[str, Any], context: RankContext) -> Iterator[None]:
    """Loss, gradients and bytes of forward and backward; the loss is multiplied before backward, as a scaler does."""
    x, weight = (inputs[name].clone().requires_grad_() for name in ("x", "weight"))
    targets = inputs["targets"].clone()
    meter = MemoryMeter([x, weight, targets])
    with one_thread(), meter:
        loss = submitted(x, weight, targets, inputs["chunk"])
    if describe_if_detached(loss):
        return {"returned": describe_if_detached(loss)}
    result = loss.detach().clone().to(x.dtype)
    yield
    with one_thread(), meter:
        (inputs["factor"] * loss).backward()
        del loss
    return {
        "loss": result,
        "x": x.grad,
        "weight": weight.grad,
        "peak": meter.peak_bytes,
        "largest": meter.largest_bytes,
    }


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    inputs, got = world.inputs[0], world.outputs[0]
    if "returned" in got:
        yield Judgement(ok=False, message=RETURNED.format(got["returned"]), mistakes=("detached_output",))
        return
    right = part_of(inputs, slice(None), int((inputs["targets"] != PADDING).sum()))
    wrong = {} if all(is_close(right[name], got[name]) for name in NAMES) else mistaken(inputs)
    for name, what in NAMES.items():
        known = {key: values[name] for key, values in wrong.items() if name in values}
        is_right = world.case.values == "large" and is_near(right[name], got[name])
        yield judge_value(what, right[name], right[name] if is_right else got[name], known)
    yield from judge_bytes(inputs, got)


def is_near(right: Tensor, got: Any) -> bool:
    """In float32 a logit of a thousand has four digits behind the point, and the gradient no more."""
    fits = isinstance(got, Tensor) and got.shape == right.shape and got.dtype == right.dtype == torch.float32
    return fits and bool((got - right).abs().max() <= 3e-3 * right.abs().max())


def judge_value(what: Words, right: Tensor, got: Any, known: dict[str, Any]) -> Judgement:
    """As expect_tensor; where NaN came, it says what gives NaN here."""
    if isinstance(got, Tensor) and got.is_floating_point() and got.isnan().any():
        en, zh = f"{what.en} is NaN", f"{what.zh}是 NaN"
        return expect(False, en, zh, mistakes=["chunk_of_padding"] if "chunk_of_padding" in known else [])
    return expect_tensor(what, right, got, mistakes=known)


def judge_bytes(inputs: dict[str, Any], got: dict[str, Any]) -> Iterator[Judgement]:
    """In chunks of logits, beside room for a few copies of both gradients; and the largest of all tensors."""
    x, weight = inputs["x"], inputs["weight"]
    one, all_of_them = (count * len(weight) * x.itemsize for count in (inputs["chunk"], len(x)))
    mine, chunk, whole = (format_bytes(number) for number in (got["peak"], one, all_of_them))
    many, widest = len(x) > inputs["chunk"], max(WIDE * one, weight.nbytes, x.nbytes)
    kept = ["logits_kept"] if got["largest"] <= widest else []
    known = (["logits_at_once"] if got["largest"] >= all_of_them else kept) if many else []
    yield expect(
        got["peak"] <= ROOM * one + COPIES * (weight.nbytes + x.nbytes),
        f"it holds {mine} at its peak; the logits of a chunk are {chunk}, those of all tokens {whole}",
        f"峰值占用 {mine}；一块的 logits 是 {chunk}，全部 token 的是 {whole}",
        mistakes=known,
    )
    largest = format_bytes(got["largest"])
    yield expect(
        got["largest"] <= widest,
        f"it makes a tensor of {largest}; the logits of a chunk are {chunk}, those of all tokens {whole}",
        f"它产生了一个 {largest} 的张量；一块的 logits 是 {chunk}，全部 token 的是 {whole}",
        mistakes=known,
    )


@one_thread()
def mistaken(inputs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the known mistakes give for the loss and both gradients."""
    chunk, counted = inputs["chunk"], inputs["targets"] != PADDING
    starts = range(0, len(counted), chunk)
    counts = [int(counted[start : start + chunk].sum()) for start in starts]
    total, whole = sum(counts), len(counted) // chunk
    means = [1 / (count * len(counts)) if count else 0.0 for count in counts]
    cut_off = [1.0] * whole + [0.0] * (len(counts) - whole)
    last = [0.0] * (len(counts) - 1) + [1 / total]
    per_chunk = [part_of(inputs, slice(start, start + chunk)) for start in starts]
    right = weighed(per_chunk, [1 / total] * len(counts))
    without = {"chunk_of_padding": {"loss": torch.full_like(right["loss"], torch.nan), "x": None, "weight": None}}
    return (without if 0 in counts else {}) | {
        "incoming_gradient_forgotten": {name: right[name] / inputs["factor"] for name in ("x", "weight")},
        "weight_gradient_of_one_chunk": {"weight": weighed(per_chunk, last)["weight"]},
        "weight_gets_nothing": {"weight": None},
        "last_chunk_dropped": weighed(per_chunk, [f / total for f in cut_off]),
        "mean_of_means": weighed(per_chunk, means),
        "padding_counted": weighed(per_chunk, [1 / len(counted)] * len(counts)),
        "not_divided": weighed(per_chunk, [1.0] * len(counts)),
    }


@one_thread()
def part_of(inputs: dict[str, Any], rows: slice, divisor: float = 1.0) -> dict[str, Tensor]:
    """Summed loss of some tokens, divided, and the gradients that it gives with the check's factor."""
    x, weight = (inputs[name].clone().requires_grad_() for name in ("x", "weight"))
    loss = F.cross_entropy(x[rows] @ weight.T, inputs["targets"][rows], ignore_index=PADDING, reduction="sum") / divisor
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
    make_inputs=make_inputs,
    run_submission=run_submission,
    judge=judge,
    hints=LAB.hints(
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
    runs_on="process",
    variations=Variations(
        dtypes=("float64", "float32"), layouts=("contiguous", "transposed"), values=("normal", "large"), min_cases=4
    ),
    must_not_change=("x", "weight", "targets"),
)
