"""Writes the sentences that speak for and against each of the planner's timed plans.

choice.py orders the plans. Here `warnings` says what speaks against a plan, `reasons` why it is ranked where it is,
`strategies` gives each strategy's best plan with the sentence that chooses it or leaves it out, and `remarks` says what
else the reader should know. advise.py and criticise.py call these functions.

A `PlanRequest` is the question (model, cluster, batch), and a `PlanEstimate` is a plan with its estimated memory and
step; both are in plans.py. A strategy is a family of plans, such as "ZeRO-3" or "TP + PP + DP", and a layout is what a
plan chooses for tp, cp, pp, ZeRO and ep (`layout_key`). `words("warning.bubble", share=20)` returns the sentence of
that key in the reader's language; the sentences are in words/advice.yaml.

From choice.py: `ranked` orders the plans, best first, and `can_tell_apart` says whether two steps differ enough to say
which is shorter. From search.py: `axis_layouts` lists the possible layouts, `reason_against` says why one does not suit
model or batch (else it is empty), and `timed_plans` gives the plans that fit and matter with their steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

from helpers.predict.advice.choice import can_tell_apart, ranked
from helpers.predict.advice.other_training import offload_plans
from helpers.predict.advice.plans import (
    STRATEGIES,
    PlanEstimate,
    PlanRequest,
    StrategyName,
    bottleneck_name,
    bottleneck_sentence,
    strategy_of,
    words,
)
from helpers.predict.advice.search import (
    METHOD_TIE,
    MOST_SUMS,
    axis_layouts,
    has_16_bit_sums,
    has_reason_against,
    layout_key,
    method_seconds,
    reason_against,
    timed_plans,
)
from helpers.predict.memory import fine_tuning, logits, memory
from helpers.predict.memory.rank_memory import RankMemory
from helpers.predict.memory.states import gradient_bytes
from helpers.predict.time.convolutions import ResNet
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import Plan

# The numbers below are this course's judgement. Above one of the first three (two shares of the step's time, and the
# tokens of a step) a plan gets a warning.
MOST_BUBBLE, MOST_TRAFFIC, MOST_TOKENS = 0.15, 0.3, 64 * 2**20
FULL = 0.97  # share of the usable memory from which on a GPU counts as full
NARROW = 512  # columns that a matrix should have at least under tensor parallelism
ROUNDS = 4  # micro-batches per stage that a pipeline should have
NO_BF16 = ("V100", "T4")  # NVIDIA's bf16 units came with A100


def with_warnings(request: PlanRequest, estimates: Sequence[PlanEstimate]) -> list[PlanEstimate]:
    """The same plans with their warnings."""

    def key(candidate: PlanEstimate) -> tuple:
        return layout_key(candidate.plan), candidate.plan.recompute

    # By `key`: the fastest plan with micro-batches of two that fits. Slow plans come first, so faster ones replace it.
    doubled = {}
    for candidate in sorted(estimates, key=lambda candidate: -candidate.seconds):
        if candidate.plan.micro_batch == 2 and _bytes_with_plain_loss(request, candidate) <= request.usable:
            doubled[key(candidate)] = candidate
    return [replace(one, warnings=warnings(request, one, doubled.get(key(one)))) for one in estimates]


def warnings(request: PlanRequest, candidate: PlanEstimate, doubled: PlanEstimate | None = None) -> dict[str, str]:
    """What an engineer would object to, a sentence for each kind. doubled: the same layout with micro-batches of two.

    The kinds are the keys of the sentences in words/advice.yaml, such as "bubble".
    """
    plan, usable, found = candidate.plan, request.usable, {}
    if candidate.bubble > MOST_BUBBLE:
        found["bubble"] = dict(share=100 * candidate.bubble)
    if plan.pp > 1 and plan.num_microbatches < ROUNDS * plan.pp:
        shape = dict(count=plan.num_microbatches, stages=plan.pp, want=ROUNDS * plan.pp)
        found["few"] = dict(shape, chunks=plan.num_chunks, share=100 * candidate.bubble)
    if plan.tp > 1 and (columns := request.model.hidden // plan.tp) < NARROW:
        found["narrow"] = dict(tp=plan.tp, hidden=request.model.hidden, columns=columns)
    if request.tokens > MOST_TOKENS:
        found["tokens"] = dict(tokens=request.tokens / 1e6)
    if plan.micro_batch == 1 and doubled and doubled.seconds <= 1.01 * candidate.seconds:  # at most 1 % slower
        found["micro"] = {}
    if plan.precision == "mixed" and plan.num_microbatches > MOST_SUMS:
        found["sums"] = dict(count=plan.num_microbatches)
    if candidate.traffic > MOST_TRAFFIC:
        found["traffic"] = dict(share=100 * candidate.traffic)
    if FULL * usable < (total := candidate.memory.total) <= usable:
        found["full"] = dict(held=format_bytes(total), usable=format_bytes(usable))
    if (plain := _bytes_with_plain_loss(request, candidate)) > usable:
        found["loss"] = dict(held=format_bytes(plain), usable=format_bytes(usable))
    if (name := request.cluster.gpu.name.split()[0]) in NO_BF16:  # the first word of a name such as "V100 SXM2"
        found["bf16"] = dict(gpu=name, size=format_bytes(request.cluster.gpu.memory))
    few = "few_in_chunks" if plan.num_chunks > 1 else "few"  # the same kind of warning in other words
    return {kind: words(f"warning.{few if kind == 'few' else kind}", **values) for kind, values in found.items()}


def _bytes_with_plain_loss(request: PlanRequest, candidate: PlanEstimate) -> float:
    """Bytes of a rank with plain PyTorch's cross entropy; 0 for images, or a vocabulary that is split over ranks.

    The estimate counts 8 bytes per logit, the fp32 logit and its gradient. Plain PyTorch takes 4 more (`logits`).
    """
    plan, last = candidate.plan, candidate.plan.pp - 1
    if plan.tp > 1 or isinstance(request.model, ResNet):
        return 0
    breakdown = candidate.memory if candidate.stage == last else memory(request.model, plan, last)
    return breakdown.total + logits(request.model, plan)


def is_tight(request: PlanRequest, candidate: PlanEstimate) -> bool:
    """Whether a plan fits only with a warning: nearly full, or 16-bit sums of more than `MOST_SUMS` micro-batches."""
    sums = candidate.plan.precision == "mixed" and candidate.plan.num_microbatches > MOST_SUMS
    return sums or candidate.memory.total > FULL * request.usable


def reasons(
    request: PlanRequest, candidate: PlanEstimate, first: PlanEstimate, estimates: Sequence[PlanEstimate]
) -> tuple[str, ...]:
    """Why a plan is ranked where it is: its memory and its bottleneck, and how it differs from the first plan.

    The first plan differs from no plan, so its other texts say how long the best plan without each of its axes would
    take. estimates: all timed plans, from which these are chosen.
    """
    holds = words("reason.holds", held=format_bytes(candidate.memory.total), usable=format_bytes(request.usable))
    both = words("between").join((holds, bottleneck_sentence(request, candidate)))
    if candidate is not first:
        return both, difference(request, candidate, first)
    axes = ("tp", "cp", "pp", "ep", "zero", "recompute")
    others = (_best_without(axis, candidate, estimates) for axis in axes)
    return both, *filter(None, (*others, _method_reason(request, candidate.plan)))


def difference(request: PlanRequest, candidate: PlanEstimate, first: PlanEstimate) -> str:
    """How a plan compares with the first one: what it needs besides, or which bottleneck makes it slower.

    Only a difference that the estimates can tell apart is called one.
    """
    ratio = candidate.seconds / first.seconds - 1  # 0.1: it takes 10 % longer
    if not can_tell_apart(candidate, first):
        return words("reason.tied", share=100 * abs(ratio), shorter=ratio < 0, also=_also(candidate, first))
    if ratio < 0:
        return words("reason.shorter", share=-100 * ratio, also=_also(candidate, first))
    here, there = candidate.shares, first.shares
    more_seconds = {name: here.get(name, 0.0) - there.get(name, 0.0) for name in {*here, *there}}
    most = max(more_seconds, key=more_seconds.get)
    what = bottleneck_name(request, most)
    if most == "tensor cores" and _recomputes_more(candidate.plan, first.plan):
        what = words("reason.again", what=what)
    key = "reason.far" if ratio > 1 else "reason.longer"
    return words(key, times=_times(ratio), time=format_seconds(more_seconds[most]), what=what)


def _recomputes_more(plan: Plan, other: Plan) -> bool:
    return plan.recompute != "none" and other.recompute == "none"


def _times(ratio: float) -> str:
    """A difference as text, "12 % longer" or, beyond twice as long, "2.4 times". ratio: 0.12 for 12 % longer."""
    return words("times" if ratio > 1 else "percent", share=100 * abs(ratio), times=ratio + 1)


def _best_without(axis: str, candidate: PlanEstimate, estimates: Sequence[PlanEstimate]) -> str:
    """What the best plan with a smaller value on this axis would take; empty where the plan does not use the axis.

    axis: a field of Plan, such as "tp", "zero" or "recompute".
    """
    value, unused = getattr(candidate.plan, axis), {"recompute": "none", "zero": 0}.get(axis, 1)  # unused: turned off
    if value == unused:
        return ""
    rank_of = ("none", "selective", "full").index if axis == "recompute" else int  # a number by which values compare
    others = [other for other in estimates if rank_of(getattr(other.plan, axis)) < rank_of(value)]
    values = {"axis": words(f"axis.{axis}"), "value": value}
    if not others:
        return words("reason.needed", **values)
    other = min(others, key=lambda other: other.seconds)
    ratio = other.seconds / candidate.seconds - 1  # below 0: the other plan is faster, but needs more
    values |= {"other": getattr(other.plan, axis), "also": _also(other, candidate)}
    if not can_tell_apart(other, candidate):
        return words("reason.near", **values, share=100 * abs(ratio), less=ratio < 0)
    return words("reason.without" if ratio >= 0 else "reason.but", **values, times=_times(ratio), share=-100 * ratio)


def _method_reason(request: PlanRequest, plan: Plan) -> str:
    """How the plan's method of context parallelism compares with the others that the stack offers.

    It also says where the number of heads forbids Ulysses. Empty without context parallelism, or without such others.
    """
    seconds = method_seconds(request, plan.tp, plan.cp) if plan.cp > 1 else {}
    ratios = {name: each / seconds[plan.cp_method] - 1 for name, each in seconds.items() if name != plan.cp_method}
    others = [
        words("reason.other_method", method=words(f"method.{name}"), share=100 * abs(ratio), less=ratio < 0)
        + (words("reason.method_tie") if abs(ratio) <= METHOD_TIE else "")
        for name, ratio in ratios.items()
    ]
    if plan.cp > 1 and (limit := reason_against(request, plan.unchecked_copy(cp_method="all_to_all"))):
        others.append(words("reason.no_ulysses", reason=limit))
    return words("reason.method", method=words(f"method.{plan.cp_method}"), others=others) if others else ""


def _also(candidate: PlanEstimate, first: PlanEstimate) -> str:
    """What a plan needs that the first one does not, to end a sentence with; empty where it needs no more."""
    plan, other = candidate.plan, first.plan
    more = [
        words("more.axis", axis=axis.upper())
        for axis in ("tp", "cp", "pp", "ep")
        if getattr(plan, axis) > 1 and getattr(other, axis) == 1
    ]
    more += [words("more.zero", stage=plan.zero)] if plan.zero > other.zero else []
    more += [words("more.chunks", chunks=plan.num_chunks)] if plan.num_chunks > other.num_chunks else []
    more += [words("more.again", what=plan.recompute)] if _recomputes_more(plan, other) else []
    more += [words("more.sums")] if has_16_bit_sums(plan) and not has_16_bit_sums(other) else []
    more += [words("more.warned")] if len(candidate.warnings) > len(first.warnings) else []
    return words("reason.also", more=more) if more else ""


_MOST_GPUS = 2**14  # up to which `_more_gpus` looks for enough GPUs
IMAGES = 256  # a batch whose learning rate is known: Goyal et al. 2017


def strategies(
    request: PlanRequest, estimates: Sequence[PlanEstimate], tried: Mapping[str, list[PlanEstimate]] | None = None
) -> tuple[PlanEstimate, ...]:
    """One row per strategy: its best plan, or its plan with least memory if none fits, or why it cannot run here.

    estimates: the plans that fit, timed. tried: for adapters (LoRA) and networks for images, all plans that were tried,
    by strategy, because these have strategies of their own; None for the usual ones.
    """
    names = [StrategyName.ONE_GPU] if request.cluster.world_size == 1 else [*STRATEGIES]
    if not estimates or estimates[0].name == StrategyName.OFFLOAD:  # which is tried only where nothing else fits
        names.append(StrategyName.OFFLOAD)
    if tried is not None:
        names = list(tried)
    first = next(iter(ranked(request, estimates)), None)
    missing = [name for name in names if not any(candidate.name == name for candidate in estimates)]
    # For each strategy of which no plan fits: its plan with the least memory.
    lightest = {name: min(tried[name], key=_total_bytes) for name in missing} if tried else _lightest(request, missing)
    rows = []
    for name in names:
        of_strategy = [candidate for candidate in estimates if candidate.name == name]
        if of_strategy:
            is_first = name == first.name
            candidate = first if is_first else ranked(request, of_strategy)[0]
            why = words("why.first") if is_first else words("why.slower", why=difference(request, candidate, first))
            rows.append(replace(candidate, why=why, is_chosen=is_first))
        elif name in lightest:
            candidate = lightest[name]
            rows.append(replace(candidate, why=words("why.too_much", memory=candidate.memory_text(request.usable))))
        elif name == StrategyName.OFFLOAD:
            rows.append(PlanEstimate(name=name, why=words("why.no_offload")))
        elif name != StrategyName.CONTEXT:  # which has a row only where a plan with it fits
            rows.append(PlanEstimate(name=name, why=words("cannot.run", reason=_reason_against_all(request, name))))
    return tuple(rows)


def _total_bytes(candidate: PlanEstimate) -> int:
    return candidate.memory.total


def _lightest(request: PlanRequest, names: Sequence[str]) -> dict[str, PlanEstimate]:
    """The plan of each strategy with the least memory: micro-batches of one, everything recomputed."""
    lightest: dict[str, PlanEstimate] = {}
    ranks = RankMemory(request.model)
    for axes in axis_layouts(request) if names else ():
        if has_reason_against(request, axes):  # because model or batch cannot be divided by these axes
            continue
        for zero in (0, 1) if axes.pp > 1 else (0, 1, 2, 3):  # as in search.py, which says why
            plan = axes.unchecked_copy(
                zero=zero, precision=request.precision or "mixed", recompute="full",
                num_microbatches=request.global_batch // axes.dp,
            )  # fmt: skip
            name = strategy_of(plan)
            if name not in names or (zero and axes.dp * axes.cp == 1):  # one replica: ZeRO has nothing to shard over
                continue
            stage, breakdown = ranks.fullest_stage(plan)
            if name not in lightest or breakdown.total < lightest[name].memory.total:
                lightest[name] = PlanEstimate(name=name, plan=plan, stage=stage, memory=breakdown)
    return lightest


def _reason_against_all(request: PlanRequest, name: str) -> str:
    """Why no plan of this strategy can run: the reason of one layout, or too few GPUs where there is no layout."""
    if "TP" in name and request.cluster.gpus_per_node == 1:
        return words("cannot.one_card")
    zero = {StrategyName.ZERO_2: 2, StrategyName.ZERO_3: 3}.get(name, 1 if "ZeRO" in name else 0)  # its stage
    layouts = [axes for axes in axis_layouts(request) if strategy_of(axes.unchecked_copy(zero=zero)) == name]
    reasons = [reason for axes in layouts if (reason := reason_against(request, axes))]
    return reasons[-1] if reasons else words("cannot.too_few", gpus=request.cluster.world_size)


def remarks(
    request: PlanRequest, best: Sequence[PlanEstimate], estimates: Sequence[PlanEstimate], simplest: PlanEstimate | None
) -> tuple[str, ...]:
    """Sentences about what the simplest plan would lose, which sizes are impossible, and what would fit.

    best: the plans that are recommended, best first, empty where none fits. simplest: the least complex of `estimates`.
    """
    if isinstance(request.model, ResNet):
        return _image_remarks(request, best)
    first, size = (best[0] if best else None), request.cluster.world_size
    if first and first.name in (StrategyName.LORA, StrategyName.QLORA):
        return (words("remark.trains_adapters", bits=first.name == StrategyName.QLORA),)  # bits: adds "in 4 bits"
    sentences = []
    if first and simplest and len(estimates) > 1:
        ratio = simplest.seconds / first.seconds - 1
        is_same = simplest.plan == first.plan or (simplest.name == first.name and ratio <= 0)
        loses = words("reason.loses", plan=simplest.plan_text, times=_times(ratio))
        sentences.append(words("reason.is_simplest") if is_same else loses)
    if first is None or first.plan.tp > 1 or first.plan.pp > 1:
        sentences.append(tensor_size_remark(request))
    has_no_dp = first is None or first.plan.dp == 1  # perhaps only because the GPUs do not divide the batch
    if has_no_dp and request.global_batch % size and size * request.model.seq <= MOST_TOKENS:
        sentences.append(words("remark.batch", gpus=size))
    if first and first.name == StrategyName.OFFLOAD:
        sentences.append(_host_remark(request, first))
    if first is None or first.name == StrategyName.OFFLOAD:
        lighter = _best_with_8_bit_optimizer(request)
        sentences.append(_suggestion("remark.eight_bits", lighter) if lighter else "")
        sentences += [_more_gpus(request, first), _adapters(request)]
    elif first.memory.total > FULL * request.usable:
        sentences.append(_more_gpus(request, first))
    return tuple(filter(None, sentences))


def _image_remarks(request: PlanRequest, best: tuple[PlanEstimate, ...]) -> tuple[str, ...]:
    if not best:
        return (words("remark.fewer_images"),)
    rate, times = best[0].tokens_per_second, request.global_batch / IMAGES  # a ResNet's tokens are images
    sentences = [words("remark.images", rate=rate, each=rate / request.cluster.world_size)]
    sentences.append(words("remark.input", rate=rate))
    if times > 1:
        sentences.append(words("remark.rate", batch=request.global_batch, times=times, base=IMAGES))
    return tuple(sentences)


def tensor_size_remark(request: PlanRequest) -> str:
    """A sentence that the model cannot use tensor parallelism of a node's size, and the next smaller size.

    Empty where the model can use it.
    """
    cluster = request.cluster
    sizes = [size for size in range(cluster.gpus_per_node, 1, -1) if cluster.gpus_per_node % size == 0]
    # A batch of 1 lets only the model speak against a size: dp is 1 here, which divides every batch.
    reasons_against = {size: reason_against(replace(request, global_batch=1), Plan(tp=size)) for size in sizes}
    possible = [size for size in sizes if not reasons_against[size]]
    if not sizes or sizes[0] in possible:
        return ""
    smaller = words("remark.smaller", size=possible[0]) if possible else words("remark.none_smaller")
    return words("remark.tp", size=sizes[0], reason=reasons_against[sizes[0]], smaller=smaller)


def _host_remark(request: PlanRequest, candidate: PlanEstimate) -> str:
    """What a node's host memory needs under offload, and the precision in which the host adds micro-batches up."""
    params = request.model.num_params * request.cluster.gpus_per_node / candidate.plan.world_size  # of one node
    count = candidate.plan.num_microbatches
    fp32 = format_bytes(candidate.host_bytes + (4 - gradient_bytes(candidate.plan)) * params)
    is_16_bit = count > 1 and gradient_bytes(candidate.plan) < 4
    sums = words("remark.host_sums", count=count, fp32=fp32) if is_16_bit else ""
    return words("remark.host", size=format_bytes(candidate.host_bytes), sums=sums)


def _best_with_8_bit_optimizer(request: PlanRequest) -> PlanEstimate | None:
    """The best plan with AdamW's moments in 8 bits, with fp32 sums of gradients if one fits; None where none fits."""
    if request.optimizer != "adamw":
        return None
    for precision in [request.precision] if request.precision else ["mixed_fp32_grads", "mixed"]:
        lighter = replace(request, optimizer="adamw_8bit", precision=precision)
        if best := ranked(lighter, with_warnings(lighter, timed_plans(lighter)[0])):
            return best[0]
    return None


def _suggestion(key: str, candidate: PlanEstimate) -> str:
    """A sentence about another plan, with its step and its bytes on the GPU and on the host."""
    sizes = {"held": format_bytes(candidate.memory.total), "host": format_bytes(candidate.host_bytes)}
    return words(key, plan=candidate.plan_text, step=format_seconds(candidate.seconds), **sizes)


def alternative(request: PlanRequest, first: PlanEstimate | None) -> str:
    """A sentence about a plan that fits without warnings, with an 8-bit optimizer or with offload.

    Empty where the first plan is not tight (`is_tight`), or where no such plan fits.
    """
    if first is None or first.name == StrategyName.OFFLOAD or isinstance(request.model, ResNet):
        return ""
    if not is_tight(request, first):
        return ""
    lighter = _best_with_8_bit_optimizer(request)
    if lighter and not lighter.warnings:
        return _suggestion("instead.eight_bits", lighter)
    offloaded = ranked(request, with_warnings(request, list(offload_plans(request))))
    return _suggestion("instead.offload", offloaded[0]) if offloaded and not offloaded[0].warnings else ""


def _more_gpus(request: PlanRequest, chosen: PlanEstimate | None) -> str:
    """How many GPUs of this kind fit the model without offload: a node's GPUs are doubled up to 8, then the nodes."""
    cluster = request.cluster
    while cluster.world_size < _MOST_GPUS:
        if cluster.num_nodes == 1 and cluster.gpus_per_node < 8:
            cluster = replace(cluster, gpus_per_node=2 * cluster.gpus_per_node)
        else:
            cluster = replace(cluster, num_nodes=2 * cluster.num_nodes)
        size = cluster.world_size
        wider = replace(request, cluster=cluster, global_batch=ceil(request.global_batch / size) * size)
        lightest = _lightest(wider, STRATEGIES)
        fitting = [one for name in STRATEGIES if (one := lightest.get(name)) and _total_bytes(one) <= request.usable]
        if fitting:
            first = fitting[0]
            values = {"name": first.title, "size": format_bytes(first.memory.total)}
            kind = "roomier" if chosen and chosen.name != StrategyName.OFFLOAD else "more_gpus"  # roomier: it fits
            return words(f"remark.{kind}", gpus=size, offloads=chosen is not None, **values)
    return words("remark.hopeless", gpus=_MOST_GPUS)


def _adapters(request: PlanRequest) -> str:
    """Which adapters fit on one GPU with one sequence per step and full recomputation, in a sentence."""
    if request.model.num_experts > 1:
        return ""  # adapters of experts are not modelled
    breakdown = memory(request.model, Plan(recompute="full", attention=request.attention))
    others = breakdown.activations + breakdown.temporaries + breakdown.buffers
    for name, model_states in (("LoRA", fine_tuning.lora), ("QLoRA", fine_tuning.qlora)):
        num_bytes = model_states(request.model, rank=16).total + others  # 16: a usual inner width of adapters
        if num_bytes <= request.usable:
            return words("remark.adapters", name=name, size=format_bytes(num_bytes))
    return words("remark.no_adapters")
