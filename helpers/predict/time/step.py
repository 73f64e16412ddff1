"""Predicts the seconds of a training step as a sum of bars: compute, memory, collectives, bubble, optimizer, host.

`step_time` is the planner's model of a step. It adds up layer.py (one layer on one rank), collectives.py and
pipeline.py. A stack is a training framework, such as Megatron-Core or FSDP; stacks.py says which traffic each one
overlaps and which kernels it has. Constants say how near a machine comes to the nominal rates of the data sheets;
before a calibration (calibrate.py) they are 1. `offloaded_step` and `adapter_step` change the bars for two cheaper
kinds of training.

Offload (Ren et al. 2021, ZeRO-Offload): gradients travel to the host during backward, once per micro-batch. The host's
optimizer step, which its memory bandwidth limits, and the way back are exposed, which means that no compute hides them.
Adapters (LoRA, QLoRA): the gradients of frozen weights, a third of the products, are not computed. QLoRA writes each
matrix out in 16 bits before each product (Dettmers et al. 2023, section 3): `UNPACKING`. The adapters' own small
products are left out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache

from helpers.predict.memory.fine_tuning import adapter_params, layer_matrices
from helpers.predict.memory.states import (
    feed_forward_params,
    gradient_bytes,
    num_shards,
    optimizer_bytes,
    params_per_rank,
    weight_bytes,
)
from helpers.predict.time.collectives import optimizer_seconds, replica_traffic, send_seconds
from helpers.predict.time.kernels import memory_rate, product_seconds
from helpers.predict.time.layer import Work, ends, layer, product_shapes
from helpers.predict.time.pipeline import pipeline_seconds, seconds_of_ranks
from helpers.predict.time.stacks import Stack
from helpers.specs import LINKS, Cluster, ModelSpec, Plan
from helpers.specs.checks import check_positive

# The host's and the GPU's seconds are joined as a 4-norm, (host^4 + gpu^4)^(1/4). This is a soft maximum: kernels
# differ in length, so some of them wait for the host while others do not.
SHARPNESS = 4


@dataclass(frozen=True, kw_only=True)
class Constants:
    """How a machine and a stack differ from the nominal rates.

    products (matrix products and attention), memory (bytes that kernels move), inside (links in a node), network (links
    between nodes): the shares of the nominal rate that are reached. launch: a factor of the host's seconds per layer,
    which the stack gives. step: seconds that a step costs in addition to all other terms.
    Raises ValueError unless all are above 0.
    """

    products: float = 1.0
    memory: float = 1.0
    inside: float = 1.0
    network: float = 1.0
    launch: float = 1.0
    step: float = 0.01

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_positive("Constants", name, value)


NOMINAL = Constants()
# The 80 % interval's factor (`StepTime.factor`) before calibration. It is 1.25 because 80 % of the published steps in
# data/ lie within 20 % of their estimates.
UNCALIBRATED = 1.25


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One term of the step. binds: what limits it: "tensor cores", "memory", "NVLink", "network", "host", "waiting"."""

    name: str
    seconds: float
    binds: str


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The waterfall of a step: its bars add up to its seconds.

    factor: the 80 % interval goes from seconds / factor to seconds * factor.
    """

    bars: tuple[Bar, ...]
    factor: float = 1.0

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return sum(bar.seconds for bar in self.bars)

    @property
    def interval(self) -> tuple[float, float]:
        """The 80 % interval of the seconds: (low, high)."""
        return self.seconds / self.factor, self.seconds * self.factor

    @property
    def binds(self) -> str:
        """The bottleneck to which most seconds of the step belong."""
        return max(self.by_bottleneck, key=self.by_bottleneck.get)

    @property
    def by_bottleneck(self) -> dict[str, float]:
        """Seconds of the step by bottleneck: tensor cores, memory, NVLink, network, host or waiting."""
        total: dict[str, float] = defaultdict(float)
        for bar in self.bars:
            total[bar.binds] += bar.seconds
        return dict(total)


def step_time(model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL) -> StepTime:
    """Predict one step of `plan` on `cluster` under `stack`; all seconds.

    Raises ValueError for a plan that does not fit the model or the cluster, or that asks for something not modelled.
    """
    plan.check(model)
    if plan.world_size != cluster.world_size:
        raise ValueError(
            f"step_time: the plan is for {plan.world_size} ranks and the cluster has {cluster.world_size} GPUs; "
            "make dp * tp * pp * cp the number of GPUs"
        )
    _check_modelled(plan)
    plan = _interleaved(model, plan, stack)
    return _Step(model, plan, cluster, stack, constants).estimate()


def pass_seconds(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL
) -> tuple[list[float], list[float]]:
    """Seconds of one micro-batch's forward and of its backward, on each of the pipeline's pp * num_chunks parts.

    Part i is on pipeline rank i % pp, so `forward[rank :: pp]` are the parts of one rank.
    """
    return _Step(model, plan, cluster, stack, constants).passes()


def least_seconds(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL
) -> float:
    """A lower bound of a step's seconds that is fast to compute, by which the search drops plans.

    It counts the busiest rank's compute, and 0.9 of one micro-batch's pass through the other ranks: a little less than
    the whole pass, so that it stays a lower bound where the stages differ. With chunks, the busiest rank waits only
    while a micro-batch passes one chunk of each other rank, so that pass is divided by the number of chunks.
    """
    forward, backward = pass_seconds(model, plan, cluster, stack, constants)
    loads = seconds_of_ranks(plan.pp, forward, backward)
    busiest = max(loads)
    return plan.num_microbatches * busiest + 0.9 * (sum(loads) - busiest) / plan.num_chunks


def _check_modelled(plan: Plan) -> None:
    """Raise ValueError where a plan asks for something that no term of the step models."""
    modelled = {
        "precision": ("mixed", "mixed_fp32_grads", "mixed_both_grads"),
        "schedule": ("one_f_one_b", "interleaved"),
    }
    for name, known in modelled.items():
        value = getattr(plan, name)
        if value not in known:
            raise ValueError(f"step_time: {name}={value!r} is not modelled; choose one of {', '.join(known)}")
    if plan.num_chunks > 1 and plan.num_microbatches % plan.pp:
        raise ValueError(
            f"step_time: {plan.num_microbatches} micro-batches do not divide by pp={plan.pp}, which chunks ask for; "
            "choose a multiple, or num_chunks=1"
        )


def _interleaved(model: ModelSpec, plan: Plan, stack: Stack) -> Plan:
    """The plan with the chunks of a stack that always interleaves; unchanged where the layers do not divide evenly.

    `stack.chunk_layers`: the layers of a chunk of such a stack; None for all other stacks.
    """
    if plan.pp == 1 or plan.num_chunks > 1 or not stack.chunk_layers or plan.num_microbatches % plan.pp:
        return plan
    for num_layers in (model.num_layers, model.num_layers + 2):  # embedding and head may count as a layer each
        if num_layers % (plan.pp * stack.chunk_layers) == 0:
            return replace(plan, num_chunks=num_layers // (plan.pp * stack.chunk_layers))
    return plan


# `Work` (layer.py) has the seconds of a pass at nominal rates, by what limits them. For each of its fields: the name of
# the field, its bottleneck, the field of Constants by which its rate is multiplied, and the name of its bar.
PARTS = (
    ("products", "tensor cores", "products", "products"),
    ("attention", "tensor cores", "products", "attention"),
    ("memory", "memory", "memory", "norms, activations, sums of gradients"),
    ("inside", "NVLink", "inside", "tensor parallelism, in a node"),
    ("network", "network", "network", "tensor parallelism, between nodes"),
    ("context", "NVLink", "inside", "context parallelism, in a node"),
    ("context_network", "network", "network", "context parallelism, between nodes"),
    ("routed", "NVLink", "inside", "all-to-alls of experts, in a node"),
    ("routed_network", "network", "network", "all-to-alls of experts, between nodes"),
)


class _Step:
    """Adds up the seconds of one step.

    A part is one of the pipeline's pp * num_chunks pieces of the model. counts: the layers of each part. ends: the work
    of the embedding (on the first part) and of the head (on the last). send: (inside a node, on the network) seconds of
    one send between stages.
    """

    def __init__(self, model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants) -> None:
        self.model, self.plan, self.cluster, self.stack, self.constants = model, plan, cluster, stack, constants
        layer_plan = _layer_plan(plan)
        self.layer, self.ends = layer(model, layer_plan, cluster, stack), ends(model, layer_plan, cluster, stack)
        self.counts = _layers_of_parts(model, plan)
        self.send = self._send()

    def estimate(self) -> StepTime:
        """The step as bars: the busiest rank's compute, what its pipeline adds, and what its replicas add."""
        plan, microbatches = self.plan, self.plan.num_microbatches
        forward, backward = self.passes()
        loads = seconds_of_ranks(plan.pp, forward, backward)  # of one micro-batch
        busiest = max(loads)
        pipeline = pipeline_seconds(plan.pp, microbatches, plan.num_chunks, forward, backward)
        bars = self._compute(loads.index(busiest))
        if plan.pp > 1:
            sends = 2 * microbatches * plan.num_chunks * sum(self.send)  # an activation and a gradient per micro-batch
            bars.append(Bar(name="sends between stages", seconds=sends, binds="network" if self.send[1] else "NVLink"))
            bars.append(Bar(name="bubble", seconds=pipeline - microbatches * busiest, binds="waiting"))
        # Pipeline rank 0, which has the embedding and therefore many parameters, stands for all ranks.
        bars += self._replica_bars(sum(forward[:: plan.pp]), sum(backward[:: plan.pp]))
        bars.append(Bar(name="step's constant", seconds=self.constants.step, binds="host"))
        return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))

    def _gpu_seconds(self, work: Work) -> dict[str, float]:
        """Seconds of each field of the work at the calibrated rates."""
        return {field: getattr(work, field) / getattr(self.constants, rate) for field, _, rate, _ in PARTS}

    def _seconds(self, work: Work) -> float:
        """Seconds of this work: the GPU's, or those of the host that launches it, whichever is longer (SHARPNESS)."""
        gpu = sum(self._gpu_seconds(work).values())
        host = work.calls * self.stack.layer_launch * self.constants.launch
        longer = max(gpu, host)
        if not longer:
            return 0.0
        return longer * (1 + (min(gpu, host) / longer) ** SHARPNESS) ** (1 / SHARPNESS)

    def passes(self) -> tuple[list[float], list[float]]:
        """Seconds of one micro-batch's forward and of its backward on each part, with sends and recomputation."""
        send = sum(self.send)
        layer_forward, layer_backward = self._seconds(self.layer.forward), self._seconds(self.layer.backward)
        layer_backward += self._seconds(self.layer.again)  # what backward computes again of forward
        forward = [count * layer_forward + send for count in self.counts]
        backward = [count * layer_backward + send for count in self.counts]
        for part, (end_forward, end_backward) in ((0, self.ends.embedding), (-1, self.ends.head)):
            forward[part] += self._seconds(end_forward)
            backward[part] += self._seconds(end_backward)
        return forward, backward

    def _compute(self, rank: int) -> list[Bar]:
        """The bars of one pipeline rank: its passes over all micro-batches, by what limits them."""
        plan, microbatches = self.plan, self.plan.num_microbatches
        layers = microbatches * sum(self.counts[rank :: plan.pp])
        seconds: dict[str, float] = defaultdict(float)
        launches = 0.0  # what waiting for the host adds to the GPU's own seconds
        for work in (self.layer.forward, self.layer.backward):
            gpu = self._gpu_seconds(work)
            for field, each in gpu.items():
                seconds[field] += layers * each
            launches += layers * (self._seconds(work) - sum(gpu.values()))
        bars = [Bar(name=name, seconds=seconds[field], binds=binds) for field, binds, _, name in PARTS]
        recomputed = layers * self._seconds(self.layer.again)
        bars.append(Bar(name="recomputation", seconds=recomputed, binds=self._bottleneck(self.layer.again)))
        for name, works, is_here in (
            ("embedding", self.ends.embedding, rank == 0), ("head and loss", self.ends.head, rank == plan.pp - 1),
        ):  # fmt: skip
            total = microbatches * sum(map(self._seconds, works)) if is_here else 0.0
            bars.append(Bar(name=name, seconds=total, binds=self._bottleneck(works[0])))
        bars.append(Bar(name="the host launches", seconds=launches, binds="host"))
        return bars

    def _bottleneck(self, work: Work) -> str:
        """The bottleneck of the field of the work that takes longest."""
        gpu = self._gpu_seconds(work)
        return max(PARTS, key=lambda row: gpu[row[0]])[1]  # a row of PARTS begins with field, bottleneck

    def _send(self) -> tuple[float, float]:
        """(inside a node, network) seconds to send a micro-batch's activations on; each tensor rank sends its part."""
        plan = self.plan
        if plan.pp == 1:
            return 0.0, 0.0
        size = 2 * plan.micro_batch * (self.model.seq // plan.cp) * self.model.hidden / plan.tp  # bytes, in 16 bits
        inside, network = send_seconds(size, self.cluster, block=plan.tp * plan.cp * plan.dp, stages=plan.pp)
        return inside / self.constants.inside, network / self.constants.network

    def _replica_bars(self, forward: float, backward: float) -> list[Bar]:
        """Exposed traffic of gradients and parameters between replicas, and the optimizer's step.

        forward, backward: seconds of one micro-batch's passes, behind which traffic can hide. What one message hides
        behind is not available for the next. A flow (`ReplicaTraffic`) is one kind of traffic, such as the
        reduce-scatter of gradients: its seconds, the share of them that may hide, and the pass behind which they hide.
        """
        plan, constants = self.plan, self.constants
        bars, available, optimizer = [], {"forward": forward, "backward": backward}, 0.0
        for params, shared_plan in self._replicated():
            for flow in replica_traffic(params, sum(self.counts[:: plan.pp]), shared_plan, self.cluster, self.stack):
                seconds = flow.inside / constants.inside + flow.network / constants.network
                hidden = min(seconds * flow.hidden, available[flow.behind])
                available[flow.behind] -= hidden
                binds = "network" if flow.network else "NVLink"
                name = flow.name if shared_plan is plan else f"{flow.name} of experts"
                bars.append(Bar(name=name, seconds=flow.often * (seconds - hidden), binds=binds))
            optimizer += optimizer_seconds(params, shared_plan, self.cluster) / constants.memory
        return [*bars, Bar(name="optimizer", seconds=optimizer, binds="memory")]

    def _replicated(self) -> list[tuple[float, Plan]]:
        """Parameters of the fullest rank, with the plan that says how they are replicated.

        The weights of experts have fewer replicas than the rest, so they come as an entry of their own.
        """
        model, plan = self.model, self.plan
        first, second, last = 0, min(1, plan.pp - 1), plan.pp - 1  # all other stages are like the second
        params = max(params_per_rank(model, plan, stage) for stage in {first, second, last})
        if plan.ep == 1:
            return [(params, plan)]
        experts = sum(self.counts[:: plan.pp]) * feed_forward_params(model, plan)
        return [(params - experts, plan), (experts, plan.of_experts)]


@lru_cache(maxsize=16384)
def _layer_plan(plan: Plan) -> Plan:
    """The plan reduced to what one layer's work depends on, so that the caches of `layer` and `ends` hit more often.

    Of the micro-batches only counts whether there are several, whose gradients must be added up. dp = ep is the
    smallest dp over which the experts can be spread.
    """
    few = min(plan.num_microbatches, 2)
    return replace(plan, dp=plan.ep, pp=1, num_chunks=1, zero=0, shard_ranks=None, num_microbatches=few)


def _layers_of_parts(model: ModelSpec, plan: Plan) -> list[int]:
    """Layers of each part of the pipeline, in order; the ends may have one fewer (see `Plan.layers_on_stage`)."""
    parts = plan.pp * plan.num_chunks
    if model.num_layers % parts == 0:
        return [model.num_layers // parts] * parts
    each = (model.num_layers + 2) // parts  # embedding and head count as a layer each, on the first and the last part
    return [each - 1, *[each] * (parts - 2), each - 1]


HOST_LINK = LINKS["PCIe 4 x16"]
HOST_BANDWIDTH = 100e9  # bytes per second of a node's memory, which its GPUs share: a rule of thumb
UNPACKED = 0.5 + 2  # bytes that unpacking moves per weight: read in 4 bits, written in 16
# How many times longer unpacking takes than moving its bytes. Qwen's fine-tuning table (its README: Q-LoRA of 72B on
# one A100, 8 micro-batches of 256 to 8,192 tokens in 27 to 180 s) leaves 2.3 to 2.8 s per micro-batch beside what grows
# with tokens; its 7B takes 1.8 s longer per step in 4 bits than in 16. The bytes alone would take 0.30 and
# 0.03 s per micro-batch.
UNPACKING = 8.5


def offloaded_step(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL
) -> StepTime:
    """Predict a step whose gradients and optimizer state are in the host's memory (ZeRO-Offload)."""
    bars = [bar for bar in step_time(model, plan, cluster, stack, constants).bars if bar.name != "optimizer"]
    params = params_per_rank(model, plan) / (num_shards(plan) if plan.zero else 1)  # of the rank's shard
    backward = sum(pass_seconds(model, plan, cluster, stack, constants)[1])
    # What backward does not hide of the gradients' way to the host, in every micro-batch.
    down = max(0.0, HOST_LINK.seconds(params * gradient_bytes(plan)) - backward) * plan.num_microbatches
    # Bytes that the host moves for all GPUs of a node: it reads and writes the state, reads gradients, writes weights.
    moved = (2 * optimizer_bytes(plan) + gradient_bytes(plan) + weight_bytes(plan)) * cluster.gpus_per_node * params
    bars += [
        Bar(name="gradients to the host", seconds=down, binds="host"),
        Bar(name="optimizer on the host", seconds=moved / HOST_BANDWIDTH, binds="host"),
        Bar(name="parameters from the host", seconds=HOST_LINK.seconds(params * weight_bytes(plan)), binds="host"),
    ]
    return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))


def adapter_step(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL, *, rank: int,
    is_quantized: bool = False,
) -> StepTime:  # fmt: skip
    """Predict a step that trains LoRA adapters of `rank` on query and value, with the model frozen.

    is_quantized: QLoRA, with the model in 4 bits and adapters on all matrices.
    """
    targets = tuple(layer_matrices(model)) if is_quantized else ("query", "value")
    trained = adapter_params(model, rank=rank, targets=targets) / model.num_params
    tokens, passes = plan.micro_batch * model.seq, plan.num_microbatches * model.num_layers
    # The gradients of frozen weights are not computed: one product per matrix, of (n, tokens) times (tokens, k).
    saved = sum(product_seconds(n, k, tokens, cluster.gpu) for n, k in product_shapes(model, plan))
    bars = []
    for bar in step_time(model, plan, cluster, stack, constants).bars:
        factor = trained if bar.name in ("gradients", "optimizer") else 1.0  # both exist for adapters alone
        less = passes * saved / constants.products if bar.name == "products" else 0.0
        bars.append(replace(bar, seconds=bar.seconds * factor - less))
    if is_quantized:
        times = passes * (3 if plan.recompute == "full" else 2)  # forward, backward, and a recomputed forward
        rate = memory_rate(cluster.gpu) * constants.memory
        unpacked = times * UNPACKING * UNPACKED * model.params_per_layer / rate
        bars.append(Bar(name="weights out of 4 bits", seconds=unpacked, binds="memory"))
    return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))
