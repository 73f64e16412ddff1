"""Which of the timed plans come first, what stands against each, and why it is there.

Plans are ordered by what they cost: seconds, and on top a few percent for each warning and for what a plan asks of
those who train with it, since the estimate is no better than that. So a plan that needs less wins a near tie.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import log2

from helpers.predict.advice.search import MOST_SUMS, layout
from helpers.predict.advice.work import STEPS, Ranked, Work, say
from helpers.predict.memory import logits, memory
from helpers.predict.time.convolutions import ResNet
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import Plan

MOST_BUBBLE, MOST_TRAFFIC, MOST_TOKENS, FULL = 0.15, 0.3, 64 * 2**20, 0.97
LONG, NARROW = 16_384, 512  # tokens of a sequence; columns that a matrix should keep under tensor parallelism
ROUNDS = 4  # micro-batches per stage that a pipeline wants
WARNED, ASKED = 0.06, 0.015  # of the seconds: a warning, a point of `asks`
NO_BF16 = ("V100", "T4")  # NVIDIA's bf16 units came with A100
SHOWN = 10


def asks(plan: Plan, seq: int) -> float:
    """What a plan asks of a training script and of those who watch it, in points; DDP on one node asks nothing.

    Context parallelism asks twice as much where sequences are short: there one has to say what it is for.
    """
    context = (2 if seq > LONG else 4) * (plan.cp > 1)
    points = context + 2 * (plan.tp > 1) + 2 * (plan.ep > 1) + 3 * (plan.pp > 1) + 0.3 * log2(plan.num_chunks)
    return points + (0, 1.9, 2.3, 2.9)[plan.zero] + 0.3 * (plan.recompute != "none") + 5 * _sums_in_16_bits(plan)


def _sums_in_16_bits(plan: Plan) -> bool:
    return plan.num_microbatches > 1 and plan.precision == "mixed"


def cost(work: Work, one: Ranked) -> float:
    """Seconds, with warnings and what is asked on top."""
    return one.seconds * (1 + WARNED * len(one.warnings) + ASKED * asks(one.plan, getattr(work.model, "seq", 1)))


def warned(work: Work, found: Sequence[Ranked]) -> list[Ranked]:
    """The same with their warnings."""
    doubled = {(layout(one.plan), one.plan.recompute): one for one in sorted(found, key=lambda one: -one.seconds)
               if one.plan.micro_batch == 2 and _plain_loss(work, one) <= work.usable}  # fmt: skip
    return [replace(one, warnings=tuple(warnings(work, one, doubled.get((layout(one.plan), one.plan.recompute)))))
            for one in found]  # fmt: skip


def without_numbers(words: str) -> str:
    """A warning without its numbers, by which plans differ that all have it."""
    return re.sub(r"\d[\d.,]*( [kMGT]?B\b)?", "", words)


def warnings(work: Work, one: Ranked, doubled: Ranked | None = None) -> list[str]:
    """What an engineer would object to, a sentence each. doubled: the same layout with micro-batches of two."""
    plan, said = one.plan, []
    if one.bubble > MOST_BUBBLE:
        said.append(say("warning.bubble", share=100 * one.bubble))
    if plan.pp > 1 and plan.num_microbatches < ROUNDS * plan.pp:
        words = dict(stages=plan.pp, want=ROUNDS * plan.pp, chunks=plan.num_chunks, share=100 * one.bubble)
        kind = "warning.few" if plan.num_chunks == 1 else "warning.few_in_chunks"
        said.append(say(kind, count=plan.num_microbatches, **words))
    if plan.tp > 1 and work.model.hidden // plan.tp < NARROW:
        said.append(say("warning.narrow", tp=plan.tp, hidden=work.model.hidden, columns=work.model.hidden // plan.tp))
    if work.tokens > MOST_TOKENS:
        said.append(say("warning.tokens", tokens=work.tokens / 1e6))
    if plan.micro_batch == 1 and doubled and doubled.seconds <= 1.01 * one.seconds:
        said.append(say("warning.micro"))
    if plan.precision == "mixed" and plan.num_microbatches > MOST_SUMS:
        said.append(say("warning.sums", count=plan.num_microbatches))
    if one.traffic > MOST_TRAFFIC:
        said.append(say("warning.traffic", share=100 * one.traffic))
    if FULL * work.usable < one.held.total <= work.usable:
        said.append(say("warning.full", held=format_bytes(one.held.total), usable=format_bytes(work.usable)))
    if (plain := _plain_loss(work, one)) > work.usable:
        said.append(say("warning.loss", held=format_bytes(plain), usable=format_bytes(work.usable)))
    if (name := work.cluster.gpu.name.split()[0]) in NO_BF16:
        said.append(say("warning.bf16", gpu=name, size=format_bytes(work.cluster.gpu.memory)))
    return said


def _plain_loss(work: Work, one: Ranked) -> float:
    """Bytes with plain PyTorch's cross entropy, 12 per logit instead of 8; 0 where the vocabulary is split."""
    plan, last = one.plan, one.plan.pp - 1
    if plan.tp > 1 or isinstance(work.model, ResNet):
        return 0
    held = one.held if one.stage == last else memory(work.model, plan, last)
    return held.total + logits(work.model, plan)


def is_tight(work: Work, one: Ranked) -> bool:
    """Whether it fits only with a warning: nearly full, or sums in 16 bits of more than `MOST_SUMS` micro-batches."""
    sums = one.plan.precision == "mixed" and one.plan.num_microbatches > MOST_SUMS
    return sums or one.held.total > FULL * work.usable


def best_of(work: Work, found: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """Up to ten, the cheapest of each layout, the cheapest first."""
    shown: dict[tuple, Ranked] = {}
    for one in sorted(found, key=partial(cost, work)):
        shown.setdefault(layout(one.plan), one)
    return tuple(shown.values())[:SHOWN]


def simplest_of(work: Work, found: Sequence[Ranked]) -> Ranked:
    """The plan that asks least; of equal ones the fastest."""
    plain, seq = dict(precision="mixed", recompute="none", num_microbatches=1), getattr(work.model, "seq", 1)
    return min(found, key=lambda one: (asks(replace(one.plan, **plain), seq), one.seconds))


def reasons(work: Work, one: Ranked, first: Ranked, found: Sequence[Ranked]) -> tuple[str, ...]:
    """Why a plan is where it is: what it holds, what binds it, and beside the first plan what makes the difference."""
    said = [say("reason.holds", held=format_bytes(one.held.total), usable=format_bytes(work.usable))]
    said.append(binding_words(work, one))
    if one is not first:
        return (*said, difference(work, one, first))
    return (
        *said,
        *(words for axis in ("tp", "cp", "pp", "ep", "zero", "recompute") if (words := _without(axis, one, found))),
    )


def binding(work: Work, name: str) -> str:
    """What sets some seconds, in words; the link inside a node by its own name."""
    return work.cluster.intra.name.split(" (")[0] if name == "NVLink" else STEPS(f"binds.{name}")


def binding_words(work: Work, one: Ranked) -> str:
    """What sets most of the step's seconds, and where that is less than half, what comes next."""
    (most, took), *others = sorted(one.shares.items(), key=lambda pair: -pair[1])
    shown = [(most, took), *others[:1]] if took < one.seconds / 2 else [(most, took)]
    return say("reason.binds", what=[say("reason.bound", what=binding(work, name), share=100 * part / one.seconds)
                                     for name, part in shown])  # fmt: skip


def difference(work: Work, one: Ranked, first: Ranked) -> str:
    """How much longer than the first, and what makes most of it."""
    ratio = one.seconds / first.seconds - 1
    more = {name: one.shares.get(name, 0.0) - first.shares.get(name, 0.0) for name in {*one.shares, *first.shares}}
    most = max(more, key=more.get)
    again = most == "tensor cores" and one.plan.recompute != "none" == first.plan.recompute
    if ratio < 0.0005:
        return say("reason.shorter" if ratio < -0.0005 else "reason.equal", share=-100 * ratio, but=_more(one, first))
    times = say("times" if ratio > 1 else "percent", share=100 * ratio, times=ratio + 1)
    return say(
        "reason.far" if ratio > 1 else "reason.longer",
        times=times,
        time=format_seconds(more[most]),
        what=say("reason.again", what=binding(work, most)) if again else binding(work, most),
    )


def _without(axis: str, one: Ranked, found: Sequence[Ranked]) -> str:
    """What the best plan with less on this axis would take, if there is one."""
    value, least = getattr(one.plan, axis), "none" if axis == "recompute" else 0 if axis == "zero" else 1
    if value == least:
        return ""
    order = ("none", "selective", "full").index if axis == "recompute" else int
    others = [other for other in found if order(getattr(other.plan, axis)) < order(value)]
    words = {"axis": say(f"axis.{axis}"), "value": value}
    if not others:
        return say("reason.needed", **words)
    other = min(others, key=lambda other: other.seconds)
    ratio = other.seconds / one.seconds - 1
    words |= {"other": getattr(other.plan, axis), "but": _more(other, one)}
    times = say("times" if ratio > 1 else "percent", share=100 * abs(ratio), times=ratio + 1)
    return say("reason.without" if ratio >= 0 else "reason.but", **words, times=times, share=-100 * ratio)


def _more(one: Ranked, first: Ranked) -> list[str]:
    """What a plan has against it that the first has not, a few words each."""
    mine, other = one.plan, first.plan
    more = [
        say("more.axis", axis=axis.upper())
        for axis in ("tp", "cp", "pp", "ep")
        if getattr(mine, axis) > 1 == getattr(other, axis)
    ]
    more += [say("more.zero", stage=mine.zero)] if mine.zero > other.zero else []
    more += [say("more.chunks", chunks=mine.num_chunks)] if mine.num_chunks > other.num_chunks else []
    more += [say("more.again", what=mine.recompute)] if mine.recompute != "none" == other.recompute else []
    more += [say("more.sums")] if _sums_in_16_bits(mine) and not _sums_in_16_bits(other) else []
    more += [say("more.warned")] if len(one.warnings) > len(first.warnings) else []
    return more or [say("more.nothing")]
