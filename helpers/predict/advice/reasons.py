"""The sentence that chooses a strategy or leaves it out, and what else should be known about the choice."""

from __future__ import annotations

from dataclasses import replace

from helpers.predict.advice.rules import Rule, say
from helpers.predict.advice.strategies import Candidate, Name, Work, best, memory_words, strategies, tensor_size_words
from helpers.predict.memory import adapters, memory
from helpers.specs import Plan
from helpers.units import format_bytes, format_seconds

AS_FAST = 1.05  # steps this close are called equal: the estimate is no better
_MOST_GPUS = 2**14


def choose(found: tuple[Candidate, ...], rule: Rule, work: Work) -> tuple[Candidate, ...]:
    """The same candidates, one of them chosen where one fits, each with its reason."""
    names = {one.name: one for one in found if one.fits}
    tiers = ([names[name] for name in tier if name in names] for tier in rule.tiers)
    tier = next((fitting for fitting in tiers if fitting), [])
    fastest = min((one.seconds for one in tier), default=0.0)
    chosen = next((one for one in tier if one.seconds <= AS_FAST * fastest), None)
    return tuple(_with_reason(one, chosen, tier, work) for one in found)


def _with_reason(one: Candidate, chosen: Candidate | None, tier: list[Candidate], work: Work) -> Candidate:
    if one.plan is None:
        return one
    if not one.fits:
        return replace(one, why=say("why.too_much", memory=memory_words(one, work.usable)))
    if one is chosen:
        is_slower = any(other.seconds < one.seconds for other in tier)
        reason = "only" if len(tier) == 1 else "tie" if is_slower else "fastest"
        return replace(one, is_chosen=True, why=say(f"why.{reason}", share=100 * (AS_FAST - 1)))
    return replace(one, why=_why_not(one, chosen, one in tier))


def _why_not(one: Candidate, chosen: Candidate, was_allowed: bool) -> str:
    ratio = one.seconds / chosen.seconds
    if not was_allowed:
        return say("why.not_asked", ratio=ratio)
    if ratio <= AS_FAST:
        return say("why.no_gain", ratio=ratio, share=100 * (AS_FAST - 1))
    return say("why.slower", ratio=ratio, cost=_what_costs(one))


def _what_costs(one: Candidate) -> str:
    """What makes most of the step that is not the model's own operations."""
    step = one.estimate
    again = step.compute / 4 if one.plan.recompute == "full" else 0.0
    costs = [("bubble", "", step.bubble), ("again", "", again), ("host", "", step.host)]
    costs += [("flow", say(f"flow.{flow.what}"), flow.exposed) for flow in step.flows]
    name, what, seconds = max(costs, key=lambda cost: cost[2])
    return say(f"cost.{name}", what=what, time=format_seconds(seconds))


def remarks(work: Work, found: tuple[Candidate, ...]) -> tuple[str, ...]:
    """What else should be known: sizes that cannot be, a faster estimate, what would be enough where nothing fits."""
    chosen = next((one for one in found if one.is_chosen), None)
    is_split = chosen is None or chosen.name not in (Name.ONE_GPU, Name.DDP)
    said = [tensor_size_words(work) if is_split else ""]
    size = work.cluster.world_size
    if work.global_batch % size:
        said.append(say("remark.batch", gpus=size))
    faster = [one for one in found if chosen and one.fits and one.seconds * AS_FAST < chosen.seconds]
    if faster:
        first = min(faster, key=lambda one: one.seconds)
        share = 100 * (1 - first.seconds / chosen.seconds)
        said.append(say("remark.faster", name=first.title, share=share))
    elif chosen:
        said.append(_nearly(chosen, found))
    if chosen and chosen.name == Name.DDP and chosen.estimate.exposed > (AS_FAST - 1) * chosen.seconds:
        times = {"exposed": chosen.estimate.exposed, "whole": chosen.seconds}
        said.append(say("remark.exposed", **{name: format_seconds(time) for name, time in times.items()}))
    if chosen and chosen.name == Name.OFFLOAD:
        said.append(say("remark.host", size=format_bytes(chosen.host_bytes)))
    if chosen is None or chosen.name == Name.OFFLOAD:
        said += [_more_gpus(work, chosen), _adapters(work)]
    return tuple(filter(None, said))


def _nearly(chosen: Candidate, found: tuple[Candidate, ...]) -> str:
    """Which one is faster by so little that it is called equal; a reader sees its number beside the chosen one's."""
    first = min((one for one in found if one.fits), key=lambda one: one.seconds)
    times = {"time": format_seconds(first.seconds), "own": format_seconds(chosen.seconds)}
    if first.seconds >= chosen.seconds or times["time"] == times["own"]:
        return ""
    return say("remark.nearly", name=first.title, chosen=chosen.title, share=100 * (AS_FAST - 1), **times)


def _more_gpus(work: Work, chosen: Candidate | None) -> str:
    """How many GPUs of this kind hold the model without offload, doubling nodes' GPUs up to 8, then nodes."""
    cluster = work.cluster
    while cluster.world_size < _MOST_GPUS:
        if cluster.num_nodes == 1 and cluster.gpus_per_node < 8:
            cluster = replace(cluster, gpus_per_node=2 * cluster.gpus_per_node)
        else:
            cluster = replace(cluster, num_nodes=2 * cluster.num_nodes)
        size = cluster.world_size
        wider = replace(work, cluster=cluster, global_batch=-(-work.global_batch // size) * size)
        fitting = [one for one in (best(each, wider) for each in strategies(cluster) if not each.offload) if one.fits]
        if fitting:
            first = min(fitting, key=lambda one: one.seconds)
            words = {"name": first.title, "size": format_bytes(first.held.total)}
            return say("remark.more_gpus", gpus=size, offloads=chosen is not None, **words)
    return say("remark.hopeless", gpus=_MOST_GPUS)


def _adapters(work: Work) -> str:
    """The honest remark: what is left if only adapters are trained, on one GPU, one sequence, recomputed."""
    held = memory(work.model, Plan(recompute="full", attention=work.attention))
    beside = held.activations + held.temporaries + held.buffers
    for name, states in (("LoRA", adapters.lora(work.model, rank=16)), ("QLoRA", adapters.qlora(work.model, rank=16))):
        if states.total + beside <= work.usable:
            size = format_bytes(states.total + beside)
            return say("remark.adapters", name=name, size=size)
    return say("remark.no_adapters")
