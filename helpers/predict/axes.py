"""Which ranks form which group of a dp x tp x pp job, and what a rank sends over each axis in a step.

Ranks are numbered as Megatron-LM does, tp fastest, then cp, dp, pp, so that a tp group is a run of neighbours: GPUs of
one node (Narayanan et al. 2021, section 3.2: tensor parallelism up to the node, pipeline parallelism across nodes).
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.predict.states import gradient_bytes, params_per_rank, weight_bytes
from helpers.predict.tensor_parallel import layer_sent_bytes
from helpers.specs import ModelSpec, Plan

ORDER = ("tp", "cp", "dp", "pp")


def num_copies(world_size: int, *, tp: int = 1, pp: int = 1, cp: int = 1) -> int:
    """dp: the copies of the model on `world_size` GPUs. ValueError where tp * pp * cp does not divide them."""
    one = tp * pp * cp
    if one < 1 or world_size < 1 or world_size % one:
        raise ValueError(f"a copy takes tp * pp * cp = {one} GPUs, which does not divide {world_size}; change an axis")
    return world_size // one


def coordinates(rank: int, plan: Plan) -> dict[str, int]:
    """Where a rank stands on each axis: {"tp": 3, "cp": 0, "dp": 1, "pp": 0}. ValueError for a rank not in the plan."""
    if rank not in range(plan.world_size):
        raise ValueError(f"rank {rank!r} does not exist: the plan has {plan.world_size} ranks, from 0")
    found = {}
    for axis in ORDER:
        rank, found[axis] = divmod(rank, getattr(plan, axis))
    return found


def group(rank: int, axis: str, plan: Plan) -> tuple[int, ...]:
    """The ranks that share every coordinate with `rank` but that on `axis`: its group on this axis, itself included."""
    if axis not in ORDER:
        raise ValueError(f"axis is {axis!r}; it must be one of {', '.join(ORDER)}")
    stride = 1
    for name in ORDER[: ORDER.index(axis)]:
        stride *= getattr(plan, name)
    first = rank - coordinates(rank, plan)[axis] * stride
    return tuple(first + i * stride for i in range(getattr(plan, axis)))


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
