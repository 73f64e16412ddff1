"""What a rank of a dp x tp x pp job sends over each axis in a step. Which ranks those are, `Plan.mesh` says."""

from __future__ import annotations

from dataclasses import dataclass

from helpers.predict.memory.states import gradient_bytes, params_per_rank, weight_bytes
from helpers.predict.traffic.tensor_parallel import layer_sent_bytes
from helpers.specs import ModelSpec, Plan


@dataclass(frozen=True, kw_only=True)
class AxisBytes:
    """Bytes that one rank sends in one step, by axis. `tp` is waited for, `dp` and `pp` can hide behind compute."""

    tp: float
    pp: float
    dp: float


def axis_bytes(model: ModelSpec, plan: Plan, stage: int = 0) -> AxisBytes:
    """What a rank of pipeline stage `stage` sends in a step of `plan.num_microbatches` micro-batches, on rings.

    tp: 2 + 2 all-reduces of b s h a layer and micro-batch (Shoeybi et al. 2019, section 3), without embedding and head.
    pp: b s h to the next stage and its gradient to the one before, whole on each tp rank. dp: one all-reduce of the
    rank's gradients, with ZeRO-1 a reduce-scatter of them and an all-gather of the weights. Raises ValueError for
    ZeRO-2 and 3 and for cp.
    """
    if plan.zero > 1 or plan.cp > 1:
        raise ValueError(f"axis_bytes counts ZeRO-0 and 1 without cp; the plan has zero={plan.zero}, cp={plan.cp}")
    width, layers = weight_bytes(plan), plan.layers_on_stage(model, stage)
    message = plan.micro_batch * model.seq * model.hidden * width
    sizes = {"batch": plan.micro_batch, "seq": model.seq, "hidden": model.hidden}
    neighbours = (stage > 0) + (stage < plan.pp - 1)
    back = width if plan.zero else gradient_bytes(plan)  # what comes back: updated weights, or summed gradients
    return AxisBytes(
        tp=plan.num_microbatches * layers * layer_sent_bytes(**sizes, tp=plan.tp, dtype_bytes=width),
        pp=plan.num_microbatches * neighbours * message,
        dp=(plan.dp - 1) / plan.dp * params_per_rank(model, plan, stage) * (gradient_bytes(plan) + back),
    )
