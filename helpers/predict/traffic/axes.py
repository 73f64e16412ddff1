"""Predicts what each rank sends over each axis of a mesh in a step of `compose.Trainer`, to the byte, from shapes.

The Trainer combines tensor, context, pipeline and data parallelism, and ranks form a mesh with an axis for each:
    tp       stage by stage as tensor_parallel.py has it; recompute="full" sends each block's forward twice
    cp       keys and values of each block as context_parallel.py has it; recomputation sends its forward twice
    pp       an activation to the next stage and its gradient back, for each micro-batch; a tied table's gradient once
    dp       zero 0: an all-reduce of gradients; 1 to 3: zero.py, in vectors that are padded to dp equal parts.
             With cp it lies over dp x cp, or over cp alone where dp is 1, since cp ranks have the same weights
    experts  lie on ranks of dp x cp, so their messages count for these axes: for each layer how many choices fall on
             each expert, with ep the all-to-alls of expert_messages.py, and gradients of experts over edp
    scalars  the loss over dp x cp x pp, the norm over each axis on which gradients lie in parts, the scaler's flags
With cp a rank has its tokens alone, so messages of tp and pp are shorter, and not equal on all cp ranks where cp chunks
have unequal lengths.
`Plan.mesh` says which ranks these are. `records.traffic_by_axis` brings what live ranks logged into the same record, so
that both can be compared. `rank_parameters` lists a rank's parameters in the order in which training puts them into
buckets, and `axis_link` says which link the messages of an axis cross.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from helpers.predict.memory.states import kv_width, table_params, weight_bytes
from helpers.predict.traffic.context_parallel import context_parallel_traffic, shard_lengths
from helpers.predict.traffic.predicted_log import PredictedLog
from helpers.predict.traffic.tensor_parallel import stage_messages
from helpers.predict.traffic.zero import zero_traffic
from helpers.records import SCALARS, AxisTraffic, CommLog
from helpers.records.comms import AxisOp, axes_along
from helpers.schedules import balanced
from helpers.specs import Cluster, Link, ModelSpec, Plan
from helpers.specs.checks import refuse_unmodelled_fields
from helpers.specs.mesh import Mesh
from helpers.specs.trainable import ONLY_PREDICTED

# Bytes of the ten int64 values with which a stage tells the next one the shape of its messages, in the first step only.
HEADER = 10 * 8
FLAGS, SCALAR = 3 * 4, 8  # bytes of the scaler's three flags in float32; of the loss or the norm in float64
DP_CP = "dp x cp"  # the name of both axes together in AxisTraffic
Sizes = list[int]  # elements of each parameter


@dataclass(frozen=True, kw_only=True)
class AxisBytes:
    """Bytes that one rank sends in one step, by axis.

    Ranks wait for `tp`, and for `cp` unless a ring hides it; `dp` and `pp` can hide behind compute. dp: over dp, or
    over dp x cp; with ep also tokens, for which ranks wait. cp: keys and values, and where dp is 1 also gradients and
    ZeRO's weights.
    """

    tp: float
    pp: float
    dp: float
    cp: float


def axis_bytes(model: ModelSpec, plan: Plan, stage: int = 0) -> AxisBytes:
    """Bytes that rings make a rank of pipeline rank `stage` send in a step: the sums of `axis_traffic`.

    Raises ValueError in the same cases.
    """
    traffic = axis_traffic(model, plan, plan.mesh.rank_at(pp=stage))
    sent = {axis: traffic.sent_bytes(axis) for axis in ("tp", "pp", "dp", "cp", DP_CP)}
    return AxisBytes(dp=sent.pop("dp") + sent.pop(DP_CP), **sent)


def axis_traffic(
    model: ModelSpec, plan: Plan, rank: int, *, dtype_bytes: int | None = None, autocast: bool = False,
    loss_scaling: bool = False, first_step: bool = False, expert_rows: int | None = None,
) -> AxisTraffic:  # fmt: skip
    """Payload of `rank` by axis and operation in one step: `num_microbatches` times `micro_batch` sequences of `seq`.

    dtype_bytes: of a weight, and of everything that is sent; None: as `plan.precision` has weights and gradients.
    autocast: results of matrix products are in 16 bits, and so are their sums over tp; all else that is sent is not.
    loss_scaling: float16's scaler agrees on its flags. first_step: include what only the first step sends, the shapes
    of messages (pp) and the order of gradients (dp). expert_rows: how many rows the experts on this rank get in the
    step, in all its layers, from all ranks of ep together; None: as many as this rank's tokens choose, which is the
    mean over these ranks. Experts are two matrices each without biases, as in parallel/experts. Stages are cut as
    `pipeline.partition` does, so one may differ by a layer from `plan.layers_on_stage`.
    Raises ValueError for a plan that cannot be composed (zero 2 or 3 with pp), or does not fit the model.
    """
    _check(model, plan)
    stages, place = virtual_stages(model, plan), plan.mesh.coordinates(rank)
    local_stages = stages[place["pp"] :: plan.pp]
    # what tp and pp send per token, they send for this rank's tokens
    shard = model if plan.cp == 1 else replace(model, seq=shard_lengths(model, plan.cp, zigzag=True)[place["cp"]])
    width = dtype_bytes or weight_bytes(plan)  # bytes of an element of weights and activations
    # Bytes of an element of a gradient: 4 with mixed_fp32_grads and mixed_both_grads, which add gradients up in fp32.
    gradients = dtype_bytes or (4 if plan.precision.endswith("_grads") else width)
    ops = [*_ops_of_log("tp", _tensor(shard, plan, local_stages, width, autocast), plan.num_microbatches)]
    num_blocks = sum(len(stage.blocks) for stage in local_stages)
    block = _context(model, plan, place["cp"], 2 if autocast else width)
    ops += _ops_of_log("cp", block, plan.num_microbatches * num_blocks)
    ops += _pipeline(shard, plan, local_stages, width, gradients, first_step)
    parameters = rank_parameters(model, plan, local_stages)
    experts = [size for _ in range(num_blocks) for size in expert_parameters(model, plan)]
    ops += _data(parameters, experts, plan, rank, width, gradients, first_step)
    ops += _experts(shard, plan, rank, num_blocks, width, expert_rows)
    return AxisTraffic.of([*ops, *_scalars(plan, loss_scaling)])


def _tensor(model: ModelSpec, plan: Plan, stages: Sequence[VirtualStage], width: int, autocast: bool) -> CommLog:
    """The tp messages of one micro-batch."""
    traffic = PredictedLog(plan.tp, dtype_bytes=width)
    # product_bytes: of an element of a matrix product's result.
    options = dict(batch=plan.micro_batch, traffic=traffic, product_bytes=2 if autocast else width)
    for _, blocks, first, last in stages:
        stage_messages(model, plan, blocks, first=first, last=last, **options)
    return traffic.log


def _context(model: ModelSpec, plan: Plan, cp_rank: int, width: int) -> CommLog:
    """The cp messages of one block and one micro-batch: of the heads that tp leaves on a rank."""
    if plan.cp == 1:
        return CommLog()
    hidden, kv_heads = model.hidden // plan.tp, max(1, model.kv_heads // plan.tp)
    heads = replace(model, hidden=hidden, num_heads=model.num_heads // plan.tp, num_kv_heads=kv_heads)
    options = dict(cp=plan.cp, method=plan.cp_method, rank=cp_rank, batch=plan.micro_batch, dtype_bytes=width)
    events = context_parallel_traffic(heads, **options).events
    # both kinds of recomputation run attention's forward again
    again = [event for event in events if event.caller.endswith("forward")] if plan.recompute != "none" else []
    return CommLog(events=(*events, *again))


def _pipeline(
    model: ModelSpec, plan: Plan, stages: Sequence[VirtualStage], width: int, gradients: int, first_step: bool
) -> Iterator[AxisOp]:
    """Sends and receives between stages: as many activations as gradients cross each edge, so both are equal.

    An edge lies between two neighbouring stages.
    """
    if plan.pp == 1:  # without a pipeline there is no edge
        return
    tokens = model.seq // plan.tp if plan.sequence_parallel else model.seq
    message = plan.num_microbatches * plan.micro_batch * tokens * model.hidden * width  # bytes over one edge in a step
    message += HEADER if first_step else 0
    edges = sum((not stage.first) + (not stage.last) for stage in stages)  # to the stages before and after
    payload = edges * message
    if model.tied_embeddings and any(stage.first or stage.last for stage in stages):
        payload += table_params(model, plan) * gradients  # the first and the last stage exchange the table's gradient
    yield from (AxisOp("pp", op, plan.pp, payload) for op in ("send", "recv"))


def _data(
    layers: list[Sizes], experts: Sizes, plan: Plan, rank: int, width: int, gradients: int, first_step: bool
) -> Iterator[AxisOp]:
    """The messages of gradients and, with ZeRO, of parameters: over dp x cp, and of split experts over edp."""
    sizes = [size for layer in layers for size in layer]
    parts = [(sizes, *_data_axis(plan))]
    if experts:
        parts.append((experts, *_expert_axis(plan, rank, "edp")))
    for local, axis, num_ranks in parts:
        if plan.zero == 0:
            yield AxisOp(axis, "all_reduce", num_ranks, sum(local) * gradients)
        elif num_ranks > 1:
            log = zero_traffic(
                local, stage=plan.zero, world_size=num_ranks, num_microbatches=plan.num_microbatches,
                units=_units(layers) if plan.zero == 3 else None, dtype_bytes=width, reduce_dtype_bytes=gradients,
            )  # fmt: skip
            yield from _ops_of_log(axis, log)
    if first_step and plan.pp == 1 and plan.zero == 0:
        # The order of the gradients, as one int64 per parameter; a pipeline does without this message.
        axis, num_ranks = _data_axis(plan)
        yield AxisOp(axis, "broadcast", num_ranks, (len(sizes) + len(experts)) * 8)


def _experts(
    model: ModelSpec, plan: Plan, rank: int, num_blocks: int, width: int, rows: int | None
) -> Iterator[AxisOp]:
    """The messages of layers of experts. model: its `seq` is of this rank. rows: see `axis_traffic`."""
    if model.num_experts == 1:
        return
    axis, num_ranks = _data_axis(plan)
    layers, forwards = num_blocks * plan.num_microbatches, 2 if plan.recompute == "full" else 1  # of each layer
    counts = model.num_experts * 8  # an int64 for each expert
    yield AxisOp(axis, "all_reduce", num_ranks, layers * forwards * counts)
    if plan.zero == 0 and plan.pp == 1:  # DDP broadcasts the buffers of each layer, its biases and counts, once
        yield AxisOp(axis, "broadcast", num_ranks, num_blocks * (model.num_experts * width + counts))
    if plan.ep > 1:
        chosen = layers * plan.micro_batch * model.seq * model.top_k
        rows = chosen if rows is None else rows
        # each forward and each backward sends rows to the experts and back
        payload = layers * forwards * counts + (forwards + 1) * (chosen + rows) * model.hidden * width
        axis, num_ranks = _expert_axis(plan, rank, "ep")
        yield AxisOp(axis, "all_to_all", num_ranks, payload)


def _data_axis(plan: Plan) -> tuple[str, int]:
    """The name and the size of the axes on which ranks have the same weights and other tokens."""
    axis = DP_CP if plan.dp > 1 and plan.cp > 1 else "dp" if plan.dp > 1 else "cp"
    return axis, plan.dp * plan.cp


def _expert_axis(plan: Plan, rank: int, axis: str) -> tuple[str, int]:
    """The same for ep or edp, which are parts of dp x cp, and are named after what they cross of these."""
    group = plan.mesh.ranks_along(axis, rank)
    return axes_along(plan.mesh, group), len(group)


def _units(layers: list[Sizes]) -> list[list[int]]:
    """The units that ZeRO-3 gathers, as positions in the list of all parameters.

    Each block is a unit, and everything outside the blocks (the first and the last entry of `layers`) is one.
    """
    ends = [0, *accumulate(map(len, layers))]
    first, *blocks, last = [list(range(a, b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return [first + last, *blocks]


def _scalars(plan: Plan, loss_scaling: bool) -> Iterator[AxisOp]:
    """All-reduces of single numbers: the loss, the gradient norm over each axis on which gradients lie in parts.

    Groups of one rank are among them; `AxisTraffic.of` leaves them out.
    """
    # ZeRO's shards lie over dp x cp, of which the ranks with other experts are a part
    sharded = {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp * plan.cp if plan.zero else plan.ep}
    for num_ranks in (plan.dp * plan.cp * plan.pp, *sharded.values()):
        yield AxisOp(SCALARS, "all_reduce", num_ranks, SCALAR)
    if loss_scaling:
        yield AxisOp(SCALARS, "all_reduce", plan.world_size, FLAGS)


def _ops_of_log(axis: str, log: CommLog, times: int = 1) -> Iterator[AxisOp]:
    """The events of a log as operations on an axis, each with `times` its payload."""
    for event in log.events:
        yield AxisOp(axis, event.op, len(event.group_ranks), times * event.payload_bytes)


def _check(model: ModelSpec, plan: Plan) -> None:
    """Raise ValueError for a model or a plan that the Trainer cannot compose."""
    unmodelled = tuple(name for name in model.RARE if name not in ("num_experts", "top_k"))
    refuse_unmodelled_fields("axis_traffic", model, names=unmodelled)
    refuse_unmodelled_fields("axis_traffic", plan, names=ONLY_PREDICTED)
    plan.check_widths(model)
    if plan.zero > 1 and plan.pp > 1:
        raise ValueError(
            f"axis_traffic counts what Trainer composes: ZeRO-2 and 3 without a pipeline; the plan has "
            f"zero={plan.zero}, pp={plan.pp}"
        )
    lengths = [model.seq] if plan.cp == 1 else shard_lengths(model, plan.cp, zigzag=True)
    uneven = [length for length in lengths if length % plan.tp]
    if plan.sequence_parallel and uneven:
        raise ValueError(
            f"axis_traffic: tp={plan.tp} does not divide the {uneven[0]} tokens of a sequence that a rank has with "
            f"cp={plan.cp}"
        )


class VirtualStage(NamedTuple):
    """A virtual stage (chunk) of a pipeline: its blocks, whether it is the first (embeddings) or the last (head).

    Virtual stage i is on pipeline rank i % pp.
    """

    number: int
    blocks: Sequence[int]
    first: bool
    last: bool


def virtual_stages(model: ModelSpec, plan: Plan) -> list[VirtualStage]:
    """All virtual stages. Embeddings and head count as a layer each, as in `pipeline.partition`.

    Raises ValueError for more stages than layers.
    """
    sizes = balanced([1.0] * (model.num_layers + 2), plan.pp * plan.num_chunks)  # layers per stage, as equal as can be
    ends = list(accumulate(sizes))
    # Layer 0 is the embeddings, so layer i is block i - 1; the last layer is the head.
    spans = [(end - size - 1, end - 1) for size, end in zip(sizes, ends, strict=True)]
    last = len(sizes) - 1
    return [
        VirtualStage(number, range(max(start, 0), min(end, model.num_layers)), number == 0, number == last)
        for number, (start, end) in enumerate(spans)
    ]


def rank_parameters(model: ModelSpec, plan: Plan, stages: Sequence[VirtualStage]) -> list[Sizes]:
    """Elements of each parameter on a tp rank that has these stages, layer by layer, as `named_parameters` gives them.

    This is the order in which training puts them into buckets. A table that embedding and head share is listed once on
    a rank, with the embedding.
    """
    table, layers = [table_params(model, plan)], []
    for stage in stages:
        if stage.first:
            positions = [model.seq * model.hidden] if model.positions == "learned" else []
            layers.append(table + positions)
        layers += [block_parameters(model, plan) for _ in stage.blocks]
        if stage.last:
            shared = model.tied_embeddings and plan.pp == 1
            layers.append(_norm(model) + ([] if shared else table))
    return layers


def block_parameters(model: ModelSpec, plan: Plan) -> Sizes:
    """Elements of a block's parameters: norm, query, key, value, projection, norm, up (and gate), down, with biases.

    In a model with experts, the router and all experts take the place of up and down; with ep the router alone.
    """
    h, width, ffn = model.hidden, model.hidden // plan.tp, model.ffn // plan.tp
    kv = kv_width(model, plan)  # columns of keys (and of values) on a rank
    columns = [size for out in (width, kv, kv) for size in _linear(model, h * out, out)]
    ups = _linear(model, h * ffn, ffn) * (2 if model.gated else 1)
    attention = _norm(model) + columns + _linear(model, width * h, h)
    if model.num_experts > 1:
        router = h * model.num_experts
        return attention + _norm(model) + [router, *(_experts_of_block(model, plan) if plan.ep == 1 else [])]
    return attention + _norm(model) + ups + _linear(model, ffn * h, h)


def expert_parameters(model: ModelSpec, plan: Plan) -> Sizes:
    """Elements of the parameters of a block whose replicas are not on all ranks of dp x cp: of its experts, with ep."""
    return _experts_of_block(model, plan) if plan.ep > 1 else []


def _experts_of_block(model: ModelSpec, plan: Plan) -> Sizes:
    """Two stacked matrices, up and down, of all experts of a block that are on a rank."""
    return [model.num_experts // plan.ep * model.hidden * model.ffn] * 2


def _linear(model: ModelSpec, weight: int, bias: int) -> Sizes:
    """The parameters of a linear layer: its weight and, if the model has biases, its bias."""
    return [weight, bias] if model.bias else [weight]


def _norm(model: ModelSpec) -> Sizes:
    """The parameters of a norm: a weight and, in a LayerNorm with biases, a bias."""
    return [model.hidden] * (model.params_per_norm // model.hidden)


def axis_link(cluster: Cluster, mesh: Mesh, axis: str, rank: int) -> Link | None:
    """The slowest link between `rank` and its peers on an axis; None where it has no peer.

    A node has ranks that follow each other. On pp the peers are the stages before and after, on other axes the whole
    group, because it forms a ring. Where groups of one axis leave a node side by side, each gets its share of the
    network (`Cluster.network_for`).
    """
    group = mesh.ranks_along(axis, rank)
    if len(group) == 1:
        return None
    node, index = rank // cluster.gpus_per_node, group.index(rank)
    peers = group[max(0, index - 1) : index + 2] if axis == "pp" else group
    if all(peer // cluster.gpus_per_node == node for peer in peers):
        return cluster.intra
    return cluster.network_for(_groups_across_nodes(mesh, axis, cluster.gpus_per_node, node))


@lru_cache(maxsize=512)
def _groups_across_nodes(mesh: Mesh, axis: str, gpus_per_node: int, node: int) -> int:
    """How many groups of the axis have ranks both in this node and in others."""
    nodes = ({rank // gpus_per_node for rank in group} for group in mesh.groups(axis))
    return sum(node in each and len(each) > 1 for each in nodes)
