"""Refuses plans that this course's Trainer cannot run, and says for each why, and which nearest plan works.

The Trainer (compose/trainer.py) calls `check_trainable` before it changes a model, and the planner (predict/advice)
calls the same function to say of each plan whether the Trainer runs it. Therefore this file needs no torch. What also
depends on the model's modules is checked in compose/refused.py. Each function below refuses one kind of plan and
accepts all others.
"""

from __future__ import annotations

from helpers.quantities.units import format_bytes
from helpers.specs.checks import refuse_unmodelled_fields
from helpers.specs.models import Plan

ONLY_PREDICTED = tuple(name for name in Plan.RARE if name not in ("cp_method", "ep"))  # what the Trainer does not run


def check_trainable(plan: Plan, weight_bytes: int) -> None:
    """Raise ValueError for a plan that this course cannot compose. weight_bytes: of all weights of the model."""
    # raises where the plan sets a field that this course only predicts
    refuse_unmodelled_fields("Trainer", plan, names=ONLY_PREDICTED)
    _refuse_method_without_cp(plan)
    _refuse_zero_with_pp(plan, weight_bytes)
    _refuse_sequence_without_tp(plan)
    _refuse_interleaved_xor_chunks(plan)
    if plan.ep > 1:
        _refuse_zero_3_with_ep(plan)
        refuse_sequence_with_experts(plan)


def _refuse_method_without_cp(plan: Plan) -> None:
    if plan.cp == 1 and plan.cp_method != Plan.cp_method:
        raise ValueError(
            f"cp_method={plan.cp_method!r} says how the cp ranks exchange keys and values, but with cp=1 each rank has "
            "them all: leave it out, or set cp above 1"
        )


def _refuse_zero_with_pp(plan: Plan, weight_bytes: int) -> None:
    if plan.zero < 2 or plan.pp == 1:
        return
    m, ranks = plan.num_microbatches, plan.dp * plan.cp  # over these ranks, ZeRO shards
    num_bytes = weight_bytes // (plan.pp * plan.tp)
    # how often (ranks - 1) / ranks of the weights' bytes are sent: stage 2 reduce-scatters gradients of each
    # micro-batch, stage 3 also gathers the weights twice; stage 1 needs one reduce-scatter and one all-gather per step
    passes = {2: m, 3: 3 * m}[plan.zero]
    would, does = (format_bytes(number * num_bytes * (ranks - 1) / ranks) for number in (passes, 2))
    what = {2: "reduce-scatter gradients", 3: "gather weights twice and reduce-scatter gradients"}[plan.zero]
    raise ValueError(
        f"zero={plan.zero} with pp={plan.pp} would {what} once for each of {m} micro-batches: {would} per rank and "
        f"step instead of {does}. The nearest plans that work are zero=1 with pp={plan.pp}, or zero={plan.zero} with "
        f"pp=1 and dp={plan.dp * plan.pp}"
    )


def _refuse_sequence_without_tp(plan: Plan) -> None:
    if plan.sequence_parallel and plan.tp == 1:
        raise ValueError(
            "sequence_parallel=True cuts what lies between the matrices over the tp group, which with tp=1 has one "
            "rank: leave it out, or set tp above 1"
        )


def _refuse_interleaved_xor_chunks(plan: Plan) -> None:
    if (plan.schedule == "interleaved") != (plan.num_chunks > 1):
        raise ValueError(
            f"schedule={plan.schedule!r} with num_chunks={plan.num_chunks}: several chunks per rank are what the "
            "schedule 'interleaved' is for, and it needs at least 2; set both or neither"
        )


def _refuse_zero_3_with_ep(plan: Plan) -> None:
    if plan.zero == 3:
        raise ValueError(
            f"zero=3 with ep={plan.ep} is not written: a layer's weights would be gathered over dp * cp = "
            f"{plan.dp * plan.cp} ranks, and its experts over {plan.mesh.edp} of them. Use zero=2, or ep=1, with which "
            "ZeRO-3 also shards the experts"
        )


def refuse_sequence_with_experts(plan: Plan) -> None:
    """Raise ValueError for sequence parallelism, which no model with experts can have, also with ep=1."""
    if plan.sequence_parallel:
        raise ValueError(
            f"sequence_parallel=True gives each of tp={plan.tp} ranks its own tokens to route, but experts are "
            "replicated over tp, and nothing would add up their gradients: use sequence_parallel=False"
        )
