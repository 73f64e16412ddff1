"""Each strategy with its best plan and the sentence that chooses it or leaves it out; what else should be known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

from helpers.predict.advice.fit import fullest
from helpers.predict.advice.others import offloaded
from helpers.predict.advice.ranking import FULL, MOST_TOKENS, best_of, cost, difference, is_tight, warned
from helpers.predict.advice.search import fitting, refusal, spreads, timed
from helpers.predict.advice.work import STRATEGIES, Name, Ranked, Work, say, strategy
from helpers.predict.memory import adapters, memory
from helpers.predict.memory.states import gradient_bytes
from helpers.predict.time.convolutions import ResNet
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import Plan

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
    for name, states in (("LoRA", adapters.lora(work.model, rank=16)), ("QLoRA", adapters.qlora(work.model, rank=16))):
        if states.total + beside <= work.usable:
            size = format_bytes(states.total + beside)
            return say("remark.adapters", name=name, size=size)
    return say("remark.no_adapters")
