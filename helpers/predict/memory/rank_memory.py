"""Predicts all bytes of a rank by kind: model states (states.py), activations (activations.py) and temporaries.

The memory explorer, the planner and the interview cards call `memory`. `rank_kinds` gives one entry per kind of rank:
ranks whose bytes are equal. Formulas are exact where a function says so, and upper bounds elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from helpers.learner.words import book
from helpers.predict.memory.activations import (
    activations,
    activations_per_layer,
    context_buffers,
    edge_activations,
    logits,
    microbatches_in_flight,
    recomputed_layer,
)
from helpers.predict.memory.states import (
    gradient_bytes,
    num_shards,
    params_per_layer,
    rank_state_bytes,
    rank_states,
    table_params,
    weight_bytes,
)
from helpers.records import MemoryBreakdown
from helpers.specs import ModelSpec, Plan

words = book("memory")  # words("rank", …) returns the text of that key in the reader's language
INSTANT = "as backward starts"


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
        buffers=_buffer_bytes(model),
        temporaries=temporaries(model, plan, stage),
        instant=INSTANT,
    )


def temporaries(model: ModelSpec, plan: Plan, stage: int = 0) -> int:
    """Bytes that a rank of `stage` needs for moments only. An upper bound, as if all worst moments came at once:

    - last stage: the gradient of the logits, as large as they are;
    - recomputation: what one layer keeps while it is computed again;
    - context parallelism: keys and values of other ranks, or tokens of other heads, in one layer's backward;
    - ZeRO-2 and 3: the full gradient of the largest unit, before it is reduced and scattered;
    - ZeRO-3: the full weights of the two largest units, the one in use and the one that is prefetched.
    A unit is a layer, the token table or the head, as FSDP wraps them. Not counted: the buffers of NCCL and the CUDA
    context, for which `fit` leaves headroom.
    """
    is_last = stage == plan.pp - 1
    temporary = recomputed_layer(model, plan) + context_buffers(model, plan, backward=True)
    temporary += logits(model, plan) if is_last else 0
    return temporary + _gathered_bytes(model, plan, stage)


def _gathered_bytes(model: ModelSpec, plan: Plan, stage: int) -> int:
    """Of `temporaries` those of ZeRO-2 and 3: full gradients before they are scattered, and full weights."""
    if num_shards(plan) == 1 or plan.zero < 2:
        return 0
    is_last = stage == plan.pp - 1
    has_head_table = is_last and not (plan.pp == 1 and model.tied_embeddings)
    num_tables = int(stage == 0) + int(has_head_table)  # the embedding's, and the head's
    tables = [table_params(model, plan)] * num_tables
    layers = [params_per_layer(model, plan)] * min(2, plan.layers_on_stage(model, stage))  # two are enough below
    units = sorted([*layers, *tables], reverse=True)
    gathered = sum(units[:2]) if plan.zero == 3 else 0
    return units[0] * gradient_bytes(plan) + gathered * weight_bytes(plan)


def _buffer_bytes(model: ModelSpec) -> int:
    """Bytes of the cosines and sines of rotary positions."""
    return 4 * model.seq * model.head_dim if model.positions == "rope" else 0


class RankMemory:
    """The bytes of the fullest rank for many plans of one model, as a search needs them.

    They are the sum that `memory` returns by kind. What several plans share is computed once, and plans are not checked
    again. The plans must suit the model, and have the same kind of attention and the same optimizer.
    """

    def __init__(self, model: ModelSpec) -> None:
        self.model = model
        self._layers: dict[tuple, tuple[int, int]] = {}
        self._stages: dict[tuple, list[_Stage]] = {}

    def fits(self, plan: Plan, usable: float) -> bool:
        """Whether no rank needs more than `usable` bytes."""
        return all(self._total(plan, one) <= usable for one in self._of_stages(plan))

    def fullest_stage(self, plan: Plan) -> tuple[int, MemoryBreakdown]:
        """The pipeline stage whose ranks hold most bytes, and their bytes by kind."""
        stage = max(self._of_stages(plan), key=lambda one: self._total(plan, one))
        parameters, gradients, optimizer = stage.states
        activations, temporaries = self._of_passes(plan, stage)
        return stage.number, MemoryBreakdown(
            parameters=parameters, gradients=gradients, optimizer=optimizer, activations=activations,
            buffers=_buffer_bytes(self.model), temporaries=temporaries, instant=INSTANT,
        )  # fmt: skip

    def _total(self, plan: Plan, stage: _Stage) -> int:
        """Bytes of a rank of the stage."""
        return stage.fixed + sum(self._of_passes(plan, stage))

    def _of_passes(self, plan: Plan, stage: _Stage) -> tuple[int, int]:
        """Bytes of activations and of temporaries."""
        per_layer, again = self._of_layer(plan)
        kept = ceil(per_layer * stage.layers * microbatches_in_flight(plan, stage.number))
        scores = logits(self.model, plan) if stage.number == plan.pp - 1 else 0  # the gradient of logits is as large
        return kept + edge_activations(self.model, plan, stage.number) + scores, again + scores + stage.gathered

    def least_bytes(self, plan: Plan) -> int:
        """A lower bound: model states alone, on the stage in the middle of the pipeline.

        With three stages or more, that stage has neither the embedding nor the head.
        """
        return sum(rank_state_bytes(self.model, plan, plan.pp // 2))

    def _of_layer(self, plan: Plan) -> tuple[int, int]:
        """Bytes that a layer keeps of a micro-batch, and that exist for moments while backward is in it."""
        key = plan.tp, plan.cp, plan.cp_method, plan.sequence_parallel, plan.micro_batch, plan.recompute
        if key not in self._layers:
            moments = recomputed_layer(self.model, plan) + context_buffers(self.model, plan, backward=True)
            self._layers[key] = activations_per_layer(self.model, plan), moments
        return self._layers[key]

    def _of_stages(self, plan: Plan) -> list[_Stage]:
        """The stages of which one is the fullest."""
        key = plan.tp, plan.cp, plan.pp, plan.dp, plan.ep, plan.zero, plan.precision, plan.last_stage_layers
        if key not in self._stages:
            self._stages[key] = [self._new_stage(plan, number) for number in representative_stages(self.model, plan)]
        return self._stages[key]

    def _new_stage(self, plan: Plan, number: int) -> _Stage:
        """A stage of the plan."""
        states, gathered = rank_state_bytes(self.model, plan, number), _gathered_bytes(self.model, plan, number)
        fixed = sum(states) + _buffer_bytes(self.model)
        return _Stage(number, plan.layers_on_stage(self.model, number), states, gathered, fixed)


class _Stage(NamedTuple):
    """What plans of one layout share on a pipeline stage.

    states: bytes of parameters, gradients and optimizer state. gathered: see `_gathered_bytes`. fixed: bytes of states
    and buffers.
    """

    number: int
    layers: int
    states: tuple[int, int, int]
    gathered: int
    fixed: int


def representative_stages(model: ModelSpec, plan: Plan) -> list[int]:
    """The first two pipeline stages and the last one, which stand for all: one of them has the fullest ranks.

    The first and the last have tables, norms and logits of their own. From the second on, stages have equal work, and
    each holds fewer micro-batches than the one before it. Where the first layers have no experts, the first stage that
    surely has none of these layers is among them, too.
    """
    return sorted({0, min(max(1, model.dense_layers), plan.pp - 1), min(1, plan.pp - 1), plan.pp - 1})


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
