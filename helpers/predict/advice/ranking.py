"""Ranks the timed plans of the planner, and words what speaks for and against each of them.

Plans are ordered by `cost`: their seconds, plus a few percent for each warning and for the complexity of the plan,
because the estimate is no more exact than that. A simpler plan therefore wins where two are nearly equal.
`strategies` gives each strategy's best plan with the sentence that chooses it or leaves it out, and `remarks` says what
else the reader should know. advise.py, criticise.py and page.py call these functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, log2

from helpers.predict.advice.fit import fullest
from helpers.predict.advice.plans import STEPS, STRATEGIES, Name, Ranked, Work, say, strategy
from helpers.predict.advice.search import MOST_SUMS, fitting, layout, offloaded, refusal, spreads, timed
from helpers.predict.memory import fine_tuning, logits, memory
from helpers.predict.memory.states import gradient_bytes
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


_MOST_GPUS = 2**14
IMAGES = 256  # a batch whose learning rate is known: Goyal et al. 2017


def strategies(
    work: Work, found: Sequence[Ranked], tried: Mapping[str, list[Ranked]] | None = None
) -> tuple[Ranked, ...]:
    """A row for each strategy: its best plan, where none fits its lightest one, else why it cannot run here."""
    names = [Name.ONE_GPU] if work.cluster.world_size == 1 else [*STRATEGIES]
    if not found or found[0].name == Name.OFFLOAD:
        names.append(Name.OFFLOAD)
    if tried is not None:
        names = list(tried)
    first = min(found, key=partial(cost, work), default=None)
    missing = [name for name in names if not any(one.name == name for one in found)]
    lightest = _lightest(work, missing) if tried is None else {name: min(tried[name], key=_held) for name in missing}
    rows = []
    for name in names:
        of_it = [one for one in found if one.name == name]
        if of_it:
            one = min(of_it, key=partial(cost, work))
            why = say("why.first") if one is first else say("why.slower", why=difference(work, one, first))
            rows.append(replace(one, why=why, is_chosen=one is first))
        elif name in lightest:
            one = lightest[name]
            rows.append(replace(one, why=say("why.too_much", memory=one.memory_words(work.usable))))
        elif name == Name.OFFLOAD:
            rows.append(Ranked(name=name, why=say("why.no_offload")))
        elif name != Name.CONTEXT:
            rows.append(Ranked(name=name, why=say("cannot.run", reason=_refused(work, name))))
    return tuple(rows)


def _held(one: Ranked) -> int:
    return one.held.total


def _lightest(work: Work, names: Sequence[str]) -> dict[str, Ranked]:
    """The plan of each strategy that holds least: micro-batches of one, everything recomputed."""
    found: dict[str, Ranked] = {}
    for spread in spreads(work) if names else ():
        if refusal(work, spread):
            continue
        for zero in (0, 1) if spread.pp > 1 else (0, 1, 2, 3):
            rows = dict(num_microbatches=work.global_batch // spread.dp, recompute="full")
            plan = replace(spread, zero=zero, precision=work.precision or "mixed", **rows)
            name = strategy(plan)
            if name not in names or (zero and spread.dp * spread.cp == 1):
                continue
            stage, held = fullest(work.model, plan)
            if name not in found or held.total < found[name].held.total:
                found[name] = Ranked(name=name, plan=plan, stage=stage, held=held)
    return found


def _refused(work: Work, name: str) -> str:
    """Why no plan of this strategy can run."""
    if "TP" in name and work.cluster.gpus_per_node == 1:
        return say("cannot.one_card")
    zero = {Name.ZERO_2: 2, Name.ZERO_3: 3}.get(name, int("ZeRO" in name))
    wanted = [spread for spread in spreads(work) if strategy(replace(spread, zero=zero)) == name]
    reasons = [reason for spread in wanted if (reason := refusal(work, spread))]
    return reasons[-1] if reasons else say("cannot.too_few", gpus=work.cluster.world_size)


def remarks(work: Work, best: tuple[Ranked, ...], found: Sequence[Ranked], simplest: Ranked | None) -> tuple[str, ...]:
    """What the simplest plan would lose, sizes that cannot be, what would be enough where nothing or little fits."""
    if isinstance(work.model, ResNet):
        return _of_images(work, best)
    first, size = (best[0] if best else None), work.cluster.world_size
    if first and first.name in (Name.LORA, Name.QLORA):
        return (say("remark.trains_adapters", bits=first.name == Name.QLORA),)
    said = []
    if first and simplest and len(found) > 1:
        ratio = simplest.seconds / first.seconds - 1
        same = simplest.plan == first.plan or (simplest.name == first.name and ratio <= 0)
        words = dict(name=simplest.title, plan=simplest.plan_words)
        words["times"] = say("times" if ratio > 1 else "percent", share=100 * ratio, times=ratio + 1)
        words["far"] = ratio > 1
        said.append(say("reason.is_simplest") if same else say("reason.loses", **words))
    if first is None or first.plan.tp > 1 or first.plan.pp > 1:
        said.append(tensor_size_words(work))
    if (first is None or first.plan.dp == 1) and work.global_batch % size and size * work.model.seq <= MOST_TOKENS:
        said.append(say("remark.batch", gpus=size))
    if first and first.name == Name.OFFLOAD:
        said.append(_host(work, first))
    if first is None or first.name == Name.OFFLOAD:
        lighter = _lighter_optimizer(work)
        said += [_beside("remark.eight_bits", lighter) if lighter else "", _more_gpus(work, first), _adapters(work)]
    elif first.held.total > FULL * work.usable:
        said.append(_more_gpus(work, first))
    return tuple(filter(None, said))


def _of_images(work: Work, best: tuple[Ranked, ...]) -> tuple[str, ...]:
    if not best:
        return (say("remark.fewer_images"),)
    rate = best[0].tokens_per_second
    said = [say("remark.images", rate=rate, each=rate / work.cluster.world_size), say("remark.input", rate=rate)]
    times = work.global_batch / IMAGES
    return (*said, *([say("remark.rate", batch=work.global_batch, times=times, base=IMAGES)] if times > 1 else []))


def tensor_size_words(work: Work) -> str:
    """Which size of tensor parallelism inside a node the model refuses, and the next smaller one; empty if none."""
    cluster = work.cluster
    sizes = [size for size in range(cluster.gpus_per_node, 1, -1) if cluster.gpus_per_node % size == 0]
    refused = {size: refusal(replace(work, global_batch=1), Plan(tp=size)) for size in sizes}
    able = [size for size in sizes if not refused[size]]
    if not sizes or sizes[0] in able:
        return ""
    smaller = say("remark.smaller", size=able[0]) if able else say("remark.none_smaller")
    return say("remark.tp", size=sizes[0], reason=refused[sizes[0]], smaller=smaller)


def _host(work: Work, one: Ranked) -> str:
    """What the host holds, and in what micro-batches are added up there."""
    here, count = work.model.num_params * work.cluster.gpus_per_node / one.plan.world_size, one.plan.num_microbatches
    fp32 = format_bytes(one.host_bytes + (4 - gradient_bytes(one.plan)) * here)
    is_short = count > 1 and gradient_bytes(one.plan) < 4
    sums = say("remark.host_sums", count=count, fp32=fp32) if is_short else ""
    return say("remark.host", size=format_bytes(one.host_bytes), sums=sums)


def _lighter_optimizer(work: Work) -> Ranked | None:
    """The best plan with an optimizer whose moments are in 8 bits; with fp32 sums, if one fits."""
    if work.optimizer != "adamw":
        return None
    for precision in [work.precision] if work.precision else ["mixed_fp32_grads", "mixed"]:
        lighter = replace(work, optimizer="adamw_8bit", precision=precision)
        if best := best_of(lighter, warned(lighter, timed(lighter, fitting(lighter)[0]))):
            return best[0]
    return None


def _beside(words: str, one: Ranked) -> str:
    sizes = {"held": format_bytes(one.held.total), "host": format_bytes(one.host_bytes)}
    return say(words, plan=one.plan_words, step=format_seconds(one.seconds), **sizes)


def instead(work: Work, first: Ranked | None) -> str:
    """Where the first plan is tight: what fits without warnings, by 8 bits or by the host; else empty."""
    if first is None or first.name == Name.OFFLOAD or isinstance(work.model, ResNet) or not is_tight(work, first):
        return ""
    eight = _lighter_optimizer(work)
    if eight and not eight.warnings:
        return _beside("instead.eight_bits", eight)
    away = best_of(work, warned(work, list(offloaded(work))))
    return _beside("instead.offload", away[0]) if away and not away[0].warnings else ""


def _more_gpus(work: Work, chosen: Ranked | None) -> str:
    """How many GPUs of this kind hold the model without offload, doubling nodes' GPUs up to 8, then nodes."""
    cluster = work.cluster
    while cluster.world_size < _MOST_GPUS:
        if cluster.num_nodes == 1 and cluster.gpus_per_node < 8:
            cluster = replace(cluster, gpus_per_node=2 * cluster.gpus_per_node)
        else:
            cluster = replace(cluster, num_nodes=2 * cluster.num_nodes)
        size = cluster.world_size
        wider = replace(work, cluster=cluster, global_batch=ceil(work.global_batch / size) * size)
        lightest = _lightest(wider, STRATEGIES)
        enough = [lightest[name] for name in STRATEGIES if name in lightest and _held(lightest[name]) <= work.usable]
        if enough:
            first = enough[0]
            words = {"name": first.title, "size": format_bytes(first.held.total)}
            kind = "roomier" if chosen and chosen.name != Name.OFFLOAD else "more_gpus"
            return say(f"remark.{kind}", gpus=size, offloads=chosen is not None, **words)
    return say("remark.hopeless", gpus=_MOST_GPUS)


def _adapters(work: Work) -> str:
    """The honest remark: what is left if only adapters are trained, on one GPU, one sequence, recomputed."""
    if work.model.num_experts > 1:
        return ""  # adapters of experts are not modelled
    held = memory(work.model, Plan(recompute="full", attention=work.attention))
    beside = held.activations + held.temporaries + held.buffers
    for name, states in (
        ("LoRA", fine_tuning.lora(work.model, rank=16)),
        ("QLoRA", fine_tuning.qlora(work.model, rank=16)),
    ):
        if states.total + beside <= work.usable:
            size = format_bytes(states.total + beside)
            return say("remark.adapters", name=name, size=size)
    return say("remark.no_adapters")
