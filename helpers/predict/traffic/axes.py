"""What each rank sends over each axis in a step of `compose.Trainer`, to the byte, from the shapes alone.

    tp       stage by stage as tensor_parallel.py has it; recompute="full" sends each block's forward twice
    pp       an activation to the next stage and its gradient back, for each micro-batch; a tied table's gradient once
    dp       zero 0: an all-reduce of gradients; 1 to 3: zero.py, in vectors that are padded to dp equal parts
    scalars  the loss over dp x pp, the norm over each axis on which gradients lie in parts, the loss scaler's flags
Which ranks those are, `Plan.mesh` says. What live ranks logged becomes the same record by `records.traffic_by_axis`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from helpers.predict.memory.states import table_params, weight_bytes
from helpers.predict.traffic.events import Traffic
from helpers.predict.traffic.layers import Stage, layer_parameters, stages_of
from helpers.predict.traffic.tensor_parallel import stage_messages
from helpers.predict.traffic.zero import zero_traffic
from helpers.records import SCALARS, AxisTraffic, CommLog
from helpers.records.axes import AxisOp
from helpers.specs import ModelSpec, Plan
from helpers.specs.checks import check_plain

HEADER = 10 * 8  # bytes with which a stage tells the next one the shape of what will come, once
FLAGS, SCALAR = 3 * 4, 8  # bytes: the scaler's three in float32; the loss and the norm in float64


@dataclass(frozen=True, kw_only=True)
class AxisBytes:
    """Bytes that one rank sends in one step, by axis. `tp` is waited for, `dp` and `pp` can hide behind compute."""

    tp: float
    pp: float
    dp: float


def axis_bytes(model: ModelSpec, plan: Plan, stage: int = 0) -> AxisBytes:
    """What rings make a rank of pipeline rank `stage` send over links in a step: `axis_traffic` in short.

    Raises ValueError as that does.
    """
    traffic = axis_traffic(model, plan, plan.mesh.rank_at(pp=stage))
    return AxisBytes(**{axis: traffic.sent_bytes(axis) for axis in ("tp", "pp", "dp")})


def axis_traffic(
    model: ModelSpec,
    plan: Plan,
    rank: int,
    *,
    dtype_bytes: int | None = None,
    autocast: bool = False,
    loss_scaling: bool = False,
    first_step: bool = False,
) -> AxisTraffic:
    """Payload of `rank` by axis and operation in one step: `num_microbatches` times `micro_batch` sequences of `seq`.

    dtype_bytes: of a weight, and of all that travels; None: as `plan.precision` has weights and gradients.
    autocast: what matrices give is in 16 bits; so are tp's sums of it, and nothing else that travels. loss_scaling:
    float16's scaler agrees on its flags. first_step: with what only the first one sends, shapes of messages (pp) and
    the order of gradients (dp). Stages are cut as `pipeline.partition` does, so one may differ by a layer from
    `plan.layers_on_stage`.
    Raises ValueError for a plan that cannot be composed (cp, zero 2 or 3 with pp), or does not fit the model.
    """
    _check(model, plan)
    place, stages = plan.mesh.coordinates(rank)["pp"], stages_of(model, plan)
    own = stages[place :: plan.pp]
    width = dtype_bytes or weight_bytes(plan)
    gradients = dtype_bytes or (4 if plan.precision.endswith("_grads") else width)
    ops = [*_of_log("tp", _tensor(model, plan, own, width, autocast), plan.num_microbatches)]
    ops += _pipeline(model, plan, own, width, gradients, first_step)
    ops += _data(layer_parameters(model, plan, own), plan, width, gradients, first_step)
    return AxisTraffic.of([*ops, *_scalars(plan, loss_scaling)])


def _tensor(model: ModelSpec, plan: Plan, stages: Sequence[Stage], width: int, autocast: bool) -> CommLog:
    """One micro-batch."""
    traffic = Traffic(plan.tp, dtype_bytes=width)
    how = dict(batch=plan.micro_batch, traffic=traffic, product_bytes=2 if autocast else width)
    for _, blocks, first, last in stages:
        stage_messages(model, plan, blocks, first=first, last=last, **how)
    return traffic.log


def _pipeline(
    model: ModelSpec, plan: Plan, stages: Sequence[Stage], width: int, gradients: int, first_step: bool
) -> Iterator[AxisOp]:
    """As many activations as gradients cross each edge of a stage, so it sends and receives the same."""
    if plan.pp == 1:
        return
    tokens = model.seq // plan.tp if plan.sequence_parallel else model.seq
    message = plan.num_microbatches * plan.micro_batch * tokens * model.hidden * width + HEADER * first_step
    edges = sum((not stage.first) + (not stage.last) for stage in stages)
    owns_table = model.tied_embeddings and any(stage.first or stage.last for stage in stages)
    payload = edges * message + owns_table * table_params(model, plan) * gradients
    yield from (AxisOp("pp", op, plan.pp, payload) for op in ("send", "recv"))


def _data(layers: list[list[int]], plan: Plan, width: int, gradients: int, first_step: bool) -> Iterator[AxisOp]:
    sizes = [size for layer in layers for size in layer]
    if plan.dp == 1:
        return
    if plan.zero == 0:
        yield AxisOp("dp", "all_reduce", plan.dp, sum(sizes) * gradients)
        if first_step and plan.pp == 1:
            yield AxisOp("dp", "broadcast", plan.dp, len(sizes) * 8)
        return
    log = zero_traffic(
        sizes,
        stage=plan.zero,
        world_size=plan.dp,
        num_microbatches=plan.num_microbatches,
        units=_units(layers) if plan.zero == 3 else None,
        dtype_bytes=width,
        reduce_dtype_bytes=gradients,
    )
    yield from _of_log("dp", log)


def _units(layers: list[list[int]]) -> list[list[int]]:
    """What ZeRO-3 gathers together: each block, and all that is in none."""
    ends = [0, *accumulate(map(len, layers))]
    first, *blocks, last = [list(range(a, b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return [first + last, *blocks]


def _scalars(plan: Plan, loss_scaling: bool) -> Iterator[AxisOp]:
    sharded = {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp if plan.zero else 1}
    for num_ranks in (plan.dp * plan.pp, *sharded.values()):
        yield AxisOp(SCALARS, "all_reduce", num_ranks, SCALAR)
    if loss_scaling:
        yield AxisOp(SCALARS, "all_reduce", plan.world_size, FLAGS)


def _of_log(axis: str, log: CommLog, times: int = 1) -> Iterator[AxisOp]:
    for event in log.events:
        yield AxisOp(axis, event.op, len(event.group_ranks), times * event.payload_bytes)


def _check(model: ModelSpec, plan: Plan) -> None:
    check_plain("axis_traffic", model, plan)
    plan.check_widths(model)
    if plan.cp > 1 or (plan.zero > 1 and plan.pp > 1):
        raise ValueError(
            f"axis_traffic counts what Trainer composes: no cp, and ZeRO-2 and 3 without a pipeline; the plan has "
            f"cp={plan.cp}, zero={plan.zero}, pp={plan.pp}"
        )
    if plan.sequence_parallel and model.seq % plan.tp:
        raise ValueError(f"axis_traffic: tp={plan.tp} does not divide the {model.seq} tokens of a sequence")
