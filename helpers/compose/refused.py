"""Refuses plans that the Trainer cannot run, and says for each why, and which nearest plan works.

A Plan says how many ranks work on each axis (dp, tp, pp, cp), the ZeRO stage, the pipeline's schedule and so on. The
Trainer calls `check` before it changes the model. Each function below refuses one kind of plan and accepts all others.
"""

from __future__ import annotations

from torch import nn

from helpers.quantities.units import format_bytes
from helpers.specs import Plan
from helpers.specs.checks import refuse_unmodelled_fields


def check(model: nn.Module, plan: Plan) -> None:
    """Raise ValueError for a plan that this course cannot compose, or cannot compose with this model."""
    refuse_unmodelled_fields("Trainer", plan)  # raises where the plan sets a field that this course only predicts
    for refuse in (_context, _zero_with_pp, _recompute_without_blocks, _sequence_without_tp, _interleaved_xor_chunks):
        refuse(model, plan)


def _context(model: nn.Module, plan: Plan) -> None:
    if plan.cp > 1:
        raise ValueError(
            f"cp={plan.cp}: context parallelism is an axis of the mesh, but its attention is not written yet. The "
            f"nearest plan that works is cp=1, tp={plan.cp * plan.tp}, sequence_parallel=True, which cuts the tokens "
            "between the matrices"
        )


def _zero_with_pp(model: nn.Module, plan: Plan) -> None:
    if plan.zero < 2 or plan.pp == 1:
        return
    m, dp = plan.num_microbatches, plan.dp
    num_bytes = sum(parameter.nbytes for parameter in model.parameters()) // (plan.pp * plan.tp)
    # how often (dp - 1) / dp of the weights' bytes are sent: stage 2 reduce-scatters gradients of each micro-batch,
    # stage 3 also gathers the weights twice; stage 1 needs one reduce-scatter and one all-gather per step
    passes = {2: m, 3: 3 * m}[plan.zero]
    would, does = (format_bytes(number * num_bytes * (dp - 1) / dp) for number in (passes, 2))
    what = {2: "reduce-scatter gradients", 3: "gather weights twice and reduce-scatter gradients"}[plan.zero]
    raise ValueError(
        f"zero={plan.zero} with pp={plan.pp} would {what} once for each of {m} micro-batches: {would} per rank and "
        f"step instead of {does}. The nearest plans that work are zero=1 with pp={plan.pp}, or zero={plan.zero} with "
        f"pp=1 and dp={dp * plan.pp}"
    )


def _recompute_without_blocks(model: nn.Module, plan: Plan) -> None:
    if plan.recompute != "none" and not hasattr(model, "blocks"):
        raise ValueError(
            f"recompute={plan.recompute!r} recomputes the elements of `model.blocks`, and a {type(model).__name__} has "
            "none: use recompute='none', or name its layers blocks"
        )


def _sequence_without_tp(model: nn.Module, plan: Plan) -> None:
    if plan.sequence_parallel and plan.tp == 1:
        raise ValueError(
            "sequence_parallel=True cuts what lies between the matrices over the tp group, which with tp=1 has one "
            "rank: leave it out, or set tp above 1"
        )


def _interleaved_xor_chunks(model: nn.Module, plan: Plan) -> None:
    if (plan.schedule == "interleaved") != (plan.num_chunks > 1):
        raise ValueError(
            f"schedule={plan.schedule!r} with num_chunks={plan.num_chunks}: several chunks per rank are what the "
            "schedule 'interleaved' is for, and it needs at least 2; set both or neither"
        )
