"""Where the bytes of a rank go, by formula: the sum of model states, activations and what is there for a moment.

states.py       parameters, gradients, optimizer: ZeRO's table, and the exact share of TP and PP
activations.py  what a rank keeps for backward: Korthikanti et al. 2022
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from helpers.learner.words import book
from helpers.predict.memory.activation_bytes import (
    activations,
    edge_activations,
    logits,
    recomputed_layer,
)
from helpers.predict.memory.states import (
    gradient_bytes,
    num_shards,
    params_per_layer,
    rank_states,
    table_params,
    weight_bytes,
)
from helpers.records import MemoryBreakdown
from helpers.specs import ModelSpec, Plan

say = book("memory")


def memory(model: ModelSpec, plan: Plan, stage: int = 0) -> MemoryBreakdown:
    """Bytes by kind of one rank of pipeline stage `stage`, as backward starts and everything is held at once.

    parameters, gradients, optimizer: `rank_states`. activations: of all layers, of embedding and head, and the fp32
    logits. buffers: cosines and sines of rotary positions, 8 bytes for each pair of a head's columns and position, as
    in Meta's reference. temporaries: see there. A sum, so an upper bound: with a single micro-batch gradients come as
    activations go, and the true peak is lower. Raises ValueError where the plan does not fit the model.
    """
    states = rank_states(model, plan, stage)
    is_last = stage == plan.pp - 1
    kept = activations(model, plan, stage) + edge_activations(model, plan, stage)
    return replace(
        states,
        activations=kept + (logits(model, plan) if is_last else 0),
        buffers=4 * model.seq * model.head_dim if model.positions == "rope" else 0,
        temporaries=temporaries(model, plan, stage),
        instant="as backward starts",
    )


def temporaries(model: ModelSpec, plan: Plan, stage: int = 0) -> int:
    """Bytes that a rank of `stage` holds for moments only, an upper bound: their worst moments at once.

    - last stage: the gradient of the logits, as large as they are;
    - recomputation: what one layer keeps while it is computed again;
    - ZeRO-2 and 3: the whole gradient of the largest unit, before it is reduced and scattered;
    - ZeRO-3: the whole weights of the two largest units, the one in use and the one fetched ahead.
    A unit is a layer, the token table or the head, as FSDP wraps them. Not counted: the buffers of NCCL and the CUDA
    context, for which `fit` leaves headroom.
    """
    is_last = stage == plan.pp - 1
    moment = recomputed_layer(model, plan) + (logits(model, plan) if is_last else 0)
    if num_shards(plan) == 1 or plan.zero < 2:
        return moment
    tables = [table_params(model, plan)] * ((stage == 0) + (is_last and not (plan.pp == 1 and model.tied_embeddings)))
    layers = [params_per_layer(model, plan)] * min(2, plan.layers_on_stage(model, stage))
    units = sorted([*layers, *tables], reverse=True)
    fetched = sum(units[:2]) if plan.zero == 3 else 0
    return moment + units[0] * gradient_bytes(plan) + fetched * weight_bytes(plan)


@dataclass(frozen=True, kw_only=True)
class RankKind:
    """Ranks that hold the same bytes. name: "ranks 0-7 (stage 0)". stage: the pipeline stage of the first of them."""

    name: str
    stage: int
    breakdown: MemoryBreakdown


def rank_kinds(model: ModelSpec, plan: Plan, *, most: int = 8) -> tuple[RankKind, ...]:
    """What each kind of rank holds, first stage first; neighbouring stages that hold the same are one kind.

    Ranks are numbered in Megatron-LM's order, tp fastest, then cp, dp, pp: a stage is a run of neighbours. Of more than
    `most` kinds, the first two, the last two and some between are returned. ValueError where the plan does not fit.
    """
    runs: list[list[int]] = []
    stages = {stage: memory(model, plan, stage) for stage in range(plan.pp)}
    for stage, breakdown in stages.items():
        if runs and stages[runs[-1][0]] == breakdown:
            runs[-1].append(stage)
        else:
            runs.append([stage])
    if len(runs) > most:
        between = [runs[round(2 + i * (len(runs) - 5) / (most - 5))] for i in range(most - 4)]
        runs = [*runs[:2], *between, *runs[-2:]]
    return tuple(RankKind(name=_name(plan, run), stage=run[0], breakdown=stages[run[0]]) for run in runs)


def _name(plan: Plan, run: list[int]) -> str:
    ends = {axis: getattr(plan, axis) - 1 for axis in ("tp", "cp", "dp")}
    first, last = plan.mesh.rank_at(pp=run[0]), plan.mesh.rank_at(pp=run[-1], **ends)
    ranks = say("rank" if first == last else "rank_range", first=first, last=last)
    if plan.pp == 1:
        return ranks
    return say("stages" if len(run) > 1 else "stage", ranks=ranks, first=run[0], last=run[-1])
