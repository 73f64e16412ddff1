"""The sentence that chooses a strategy or leaves it out, and what else should be known about the choice."""

from __future__ import annotations

from dataclasses import replace

from helpers.predict import adapters
from helpers.predict.memory import memory
from helpers.predict.rules import Rule
from helpers.predict.strategies import Candidate, Name, Work, best, memory_words, strategies, tensor_size_words
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
        return replace(one, why=f"Does not fit: {memory_words(one, work.usable)}.")
    if one is chosen:
        why = "The shortest estimated step of those that the rule names and that fit"
        if len(tier) == 1:
            why = "The rule names it, and it fits"
        elif any(other.seconds < one.seconds for other in tier):
            why = f"No step is more than {100 * (AS_FAST - 1):.0f} % shorter, and no other changes less"
        return replace(one, is_chosen=True, why=f"{why}.")
    return replace(one, why=_why_not(one, chosen, one in tier))


def _why_not(one: Candidate, chosen: Candidate, was_allowed: bool) -> str:
    ratio = one.seconds / chosen.seconds
    if not was_allowed:
        return f"Fits, but the rule does not ask for it here; a step would take {_times(ratio)}."
    if ratio <= AS_FAST:
        return f"Fits, but changes more for no gain: a step takes {_times(ratio)}."
    return f"Fits, but a step takes {_times(ratio)}: {_what_costs(one)}."


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times as long"


def _what_costs(one: Candidate) -> str:
    """What makes most of the step that is not the model's own operations."""
    step = one.estimate
    again = step.compute / 4 if one.plan.recompute == "full" else 0.0
    costs = {
        f"{format_seconds(step.bubble)} of bubble": step.bubble,
        f"{format_seconds(again)} to compute forward again": again,
        f"{format_seconds(step.host)} of the optimizer on the CPU": step.host,
    }
    costs |= {f"{format_seconds(flow.exposed)} of {flow.what} in the open": flow.exposed for flow in step.flows}
    return max(costs, key=lambda words: costs[words])


def remarks(work: Work, found: tuple[Candidate, ...]) -> tuple[str, ...]:
    """What else should be known: sizes that cannot be, a faster estimate, what would be enough where nothing fits."""
    chosen = next((one for one in found if one.is_chosen), None)
    is_split = chosen is None or chosen.name not in (Name.ONE_GPU, Name.DDP)
    said = [tensor_size_words(work) if is_split else ""]
    size = work.cluster.world_size
    if work.global_batch % size:
        said.append(f"With a global batch that is a multiple of {size:,}, data parallelism could use every GPU.")
    faster = [one for one in found if chosen and one.fits and one.seconds * AS_FAST < chosen.seconds]
    if faster:
        first = min(faster, key=lambda one: one.seconds)
        share = 100 * (1 - first.seconds / chosen.seconds)
        said.append(f"By the estimate {first.name} would save {share:.0f} % of a step: measure both.")
    if chosen and chosen.name == Name.DDP and chosen.estimate.exposed > (AS_FAST - 1) * chosen.seconds:
        parts = f"{format_seconds(chosen.estimate.exposed)} of a step's {format_seconds(chosen.seconds)}"
        said.append(f"{parts} are all-reduce in the open: a larger global batch makes that share smaller.")
    if chosen and chosen.name == Name.OFFLOAD:
        said.append(f"The host of each node must hold {format_bytes(chosen.host_bytes)} of optimizer state.")
    if chosen is None or chosen.name == Name.OFFLOAD:
        said += [_more_gpus(work, chosen), _adapters(work)]
    return tuple(filter(None, said))


def _more_gpus(work: Work, chosen: Candidate | None) -> str:
    """How many GPUs of this kind hold the model without offload, doubling nodes' GPUs up to 8, then nodes."""
    cluster = work.cluster
    without = " without offload" if chosen else ""
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
            return (
                f"{size:,} such GPUs would be enough{without}: {first.name}, {format_bytes(first.held.total)} a rank."
            )
    return f"Not even {_MOST_GPUS:,} such GPUs would be enough; shorten the sequence or choose a smaller model."


def _adapters(work: Work) -> str:
    """The honest remark: what is left if only adapters are trained, on one GPU, one sequence, recomputed."""
    held = memory(work.model, Plan(recompute="full", attention=work.attention))
    beside = held.activations + held.temporaries + held.buffers
    for name, states in (("LoRA", adapters.lora(work.model, rank=16)), ("QLoRA", adapters.qlora(work.model, rank=16))):
        if states.total + beside <= work.usable:
            size = format_bytes(states.total + beside)
            return f"{name} of rank 16 would fit on one GPU, {size}; it trains adapters, not the model."
    return "Not even QLoRA fits on one such GPU."
