"""Predicts all bytes of a rank by kind: model states (states.py), activations (activations.py) and temporaries.

The memory explorer, the planner and the interview cards call `memory`. `rank_kinds` gives one entry per kind of rank:
ranks whose bytes are equal. Formulas are exact where a function says so, and upper bounds elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from helpers.learner.words import book
from helpers.predict.memory.activations import activations, edge_activations, logits, recomputed_layer
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

words = book("memory")  # words("rank", …) returns the text of that key in the reader's language


def memory(model: ModelSpec, plan: Plan, stage: int = 0) -> MemoryBreakdown:
    """Bytes by kind of one rank of pipeline stage `stage`, as backward starts and all kinds exist at once.

    parameters, gradients, optimizer: `rank_states`. activations: of all layers, of embedding and head, and the fp32
    logits. buffers: cosines and sines of rotary positions, 8 bytes for each pair of a head's columns and position, as
    in Meta's reference. temporaries: the function below. The sum is an upper bound: with a single micro-batch,
    gradients appear while activations are freed, so the true peak is lower. Raises ValueError where the plan does not
    fit the model.
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
    """Bytes that a rank of `stage` needs for moments only. An upper bound, as if all worst moments came at once:

    - last stage: the gradient of the logits, as large as they are;
    - recomputation: what one layer keeps while it is computed again;
    - ZeRO-2 and 3: the full gradient of the largest unit, before it is reduced and scattered;
    - ZeRO-3: the full weights of the two largest units, the one in use and the one that is prefetched.
    A unit is a layer, the token table or the head, as FSDP wraps them. Not counted: the buffers of NCCL and the CUDA
    context, for which `fit` leaves headroom.
    """
    is_last = stage == plan.pp - 1
    temporary = recomputed_layer(model, plan) + (logits(model, plan) if is_last else 0)
    if num_shards(plan) == 1 or plan.zero < 2:
        return temporary
    has_head_table = is_last and not (plan.pp == 1 and model.tied_embeddings)
    num_tables = int(stage == 0) + int(has_head_table)  # the embedding's, and the head's
    tables = [table_params(model, plan)] * num_tables
    layers = [params_per_layer(model, plan)] * min(2, plan.layers_on_stage(model, stage))  # two are enough below
    units = sorted([*layers, *tables], reverse=True)
    gathered = sum(units[:2]) if plan.zero == 3 else 0
    return temporary + units[0] * gradient_bytes(plan) + gathered * weight_bytes(plan)


@dataclass(frozen=True, kw_only=True)
class RankKind:
    """Ranks with the same bytes. name: such as "ranks 0-7 (stage 0)". stage: the pipeline stage of the first rank."""

    name: str
    stage: int
    breakdown: MemoryBreakdown


def rank_kinds(model: ModelSpec, plan: Plan, *, most: int = 8) -> tuple[RankKind, ...]:
    """The bytes of each kind of rank, first stage first; neighbouring stages with the same bytes are one kind.

    Ranks are numbered in Megatron-LM's order, tp fastest, then cp, dp, pp, so a stage has neighbouring ranks. Of more
    than `most` kinds, the first two, the last two and some between are returned. ValueError where a plan does not fit.
    """
    runs: list[list[int]] = []  # neighbouring stages with the same bytes
    stages = {stage: memory(model, plan, stage) for stage in range(plan.pp)}
    for stage, breakdown in stages.items():
        if runs and stages[runs[-1][0]] == breakdown:
            runs[-1].append(stage)
        else:
            runs.append([stage])
    # Too many: the first two, the last two, and most - 4 of the others (positions 2 to len(runs) - 3), evenly spread.
    if len(runs) > most:
        between = [runs[round(2 + i * (len(runs) - 5) / (most - 5))] for i in range(most - 4)]
        runs = [*runs[:2], *between, *runs[-2:]]
    return tuple(RankKind(name=_name(plan, run), stage=run[0], breakdown=stages[run[0]]) for run in runs)


def _name(plan: Plan, run: list[int]) -> str:
    """The ranks of these stages as text: the first rank of the first stage to the last rank of the last one."""
    ends = {axis: getattr(plan, axis) - 1 for axis in ("tp", "cp", "dp")}
    first, last = plan.mesh.rank_at(pp=run[0]), plan.mesh.rank_at(pp=run[-1], **ends)
    ranks = words("rank" if first == last else "rank_range", first=first, last=last)
    if plan.pp == 1:
        return ranks
    return words("stages" if len(run) > 1 else "stage", ranks=ranks, first=run[0], last=run[-1])
