"""Predicts the seconds of a training step as a sum of bars: compute, memory, collectives, bubble, optimizer, host.

`step_time` is the planner's model of a step. It adds up layer.py (one layer on one rank), collectives.py and
pipeline.py. A stack is a training framework, such as Megatron-Core or FSDP; stacks.py says which traffic each one
overlaps and which kernels it has. Constants say how near a machine comes to the nominal rates of the data sheets;
before a calibration (calibrate.py) they are 1. offload_and_adapters.py changes the bars for two cheaper kinds of
training.

A search that asks for the steps of many plans takes a `StepModel`, which computes once what these plans share.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from operator import add, truediv
from typing import NamedTuple

from helpers.predict.memory.rank_memory import representative_stages
from helpers.predict.memory.states import expert_params, params_per_rank
from helpers.predict.time.collectives import ReplicaTraffic, optimizer_seconds, replica_traffic, send_seconds
from helpers.predict.time.layer import Work, ends, layer
from helpers.predict.time.pipeline import pipeline_seconds
from helpers.predict.time.stacks import Stack
from helpers.specs import Cluster, ModelSpec, Plan
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


class Bar(NamedTuple):
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

    @cached_property
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

    @cached_property
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
    return StepModel(model, cluster, stack, constants).step(plan)


def pass_seconds(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL
) -> tuple[list[float], list[float]]:
    """Seconds of one micro-batch's forward and of its backward, on each of the pipeline's pp * num_chunks parts.

    Part i is on pipeline rank i % pp, so `forward[rank :: pp]` are the parts of one rank.
    """
    pipeline = StepModel(model, cluster, stack, constants).pipeline(plan)
    return pipeline.forward.of_parts, pipeline.backward.of_parts


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


class _Layer(NamedTuple):
    """A layer and the ends of the model, at calibrated rates.

    forward, backward, again: seconds of each field of `Work`, in the order of PARTS, and of all of them together with
    the host's launches. embedding, head: seconds of (forward, backward). The names that begin with `binds` are the
    bottlenecks.
    """

    forward: tuple[tuple[float, ...], float]
    backward: tuple[tuple[float, ...], float]
    again: float
    embedding: tuple[float, float]
    head: tuple[float, float]
    binds_again: str
    binds_embedding: str
    binds_head: str


class _Pass(NamedTuple):
    """Seconds of one micro-batch in one pass, on the first part of the pipeline, on each part between, and on the last.

    A part is one of the pipeline's stages * chunks pieces of the model. A rank has every `stages`-th part. All parts
    between the ends are equal, and so are all ranks between the first and the last.
    """

    stages: int
    chunks: int
    first: float
    between: float
    last: float

    @property
    def of_parts(self) -> list[float]:
        """Seconds on each part."""
        if self.stages == 1:
            return [self.last]
        return [self.first, *[self.between] * (self.stages * self.chunks - 2), self.last]

    @property
    def of_ranks(self) -> tuple[float, float, float]:
        """Seconds on the first rank, on each rank between, and on the last."""
        if self.stages == 1:
            return self.last, self.last, self.last
        if self.chunks == 1:
            return self.first, self.between, self.last
        others = [self.between] * (self.chunks - 1)
        return sum([self.first, *others]), sum([*others, self.between]), sum([*others, self.last])


class _Pipeline:
    """The passes of a plan. loads: seconds of one micro-batch on each rank, in both passes."""

    def __init__(self, plan: Plan, forward: _Pass, backward: _Pass) -> None:
        self.plan, self.forward, self.backward = plan, forward, backward
        first, between, last = map(add, forward.of_ranks, backward.of_ranks)
        self.loads = [first, *[between] * (plan.pp - 2), last] if plan.pp > 1 else [first]

    @cached_property
    def seconds(self) -> float:
        """Seconds of all micro-batches, from the first forward to the last backward."""
        plan, parts = self.plan, (self.forward.of_parts, self.backward.of_parts)
        return pipeline_seconds(plan.pp, plan.num_microbatches, plan.num_chunks, *parts)


class StepModel:
    """Predicts the steps of many plans of one model on one cluster, under one stack.

    It computes once what several plans share: the work of a layer, the passes of a pipeline, the traffic between
    replicas. Plans are not checked; `step_time` does that. They must have the same optimizer and kind of attention, and
    either all or none of them fp8.
    """

    def __init__(self, model: ModelSpec, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL) -> None:
        self.model, self.cluster, self.stack, self.constants = model, cluster, stack, constants
        # A layer does not depend on the number of nodes, so clusters of all sizes share the caches of layer.py.
        self._node = replace(cluster, num_nodes=1)
        self._rates = [getattr(constants, rate) for _, _, rate, _ in PARTS]
        self._layers: dict[tuple, _Layer] = {}
        self._pipelines: dict[tuple, _Pipeline] = {}
        self._replicas: dict[tuple, tuple[list[tuple[ReplicaTraffic, str]], float]] = {}
        self._sends: dict[tuple, tuple[float, float]] = {}

    def step(self, plan: Plan) -> StepTime:
        """The step as bars: the busiest rank's compute, what its pipeline adds, and what its replicas add."""
        plan, microbatches = _interleaved(self.model, plan, self.stack), plan.num_microbatches
        pipeline = self.pipeline(plan)
        busiest = max(pipeline.loads)
        bars = self._compute(plan, pipeline.loads.index(busiest))
        if plan.pp > 1:
            inside, network = self._send(plan)
            sends = 2 * microbatches * plan.num_chunks * (inside + network)  # an activation and a gradient each
            bars.append(Bar("sends between stages", sends, "network" if network else "NVLink"))
            bars.append(Bar("bubble", pipeline.seconds - microbatches * busiest, "waiting"))
        # Pipeline rank 0, which has the embedding and therefore many parameters, stands for all ranks.
        bars += self._replica_bars(plan, pipeline.forward.of_ranks[0], pipeline.backward.of_ranks[0])
        bars.append(Bar("step's constant", self.constants.step, "host"))
        return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))

    def least_seconds(self, plan: Plan, chunks: int | None = None) -> float:
        """A lower bound of a step's seconds that is fast to compute, by which the search drops plans.

        It counts the busiest rank's compute, and 0.9 of one micro-batch's pass through the other ranks: a little less
        than the whole pass, so that it stays a lower bound where the stages differ. With chunks, the busiest rank waits
        only while a micro-batch passes one chunk of each other rank, so that pass is divided by the number of chunks.
        chunks: this number, if it is not that of the plan.
        """
        loads = self.pipeline(plan).loads
        busiest = max(loads)
        return plan.num_microbatches * busiest + 0.9 * (sum(loads) - busiest) / (chunks or plan.num_chunks)

    def layer_seconds(self, plan: Plan) -> float:
        """Seconds of one layer's forward and backward for one micro-batch, without recomputation."""
        return self._layer(plan).forward[1] + self._layer(plan).backward[1]

    def pipeline(self, plan: Plan) -> _Pipeline:
        """The passes of the plan, from the cache if a plan with the same passes came before, of any ZeRO stage."""
        axes = plan.tp, plan.cp, plan.cp_method, plan.pp, plan.dp, plan.ep, plan.num_chunks
        key = *axes, plan.micro_batch, plan.num_microbatches, plan.recompute, plan.precision
        if key not in self._pipelines:
            self._pipelines[key] = self._new_pipeline(plan)
        return self._pipelines[key]

    def _new_pipeline(self, plan: Plan) -> _Pipeline:
        """The passes of the plan, with sends and recomputation."""
        layer, send = self._layer(plan), sum(self._send(plan))
        layers_of_end, layers_between = _layers_of_parts(self.model, plan)
        passes = []
        # again: what backward computes again of forward
        layer_seconds = layer.forward[1], layer.backward[1] + layer.again
        for of_layer, embedding, head in zip(layer_seconds, layer.embedding, layer.head, strict=True):
            of_end, between = layers_of_end * of_layer + send, layers_between * of_layer + send
            first = of_end + embedding
            # A pipeline of one stage has a single part, which is both ends.
            passes.append(_Pass(plan.pp, plan.num_chunks, first, between, (first if plan.pp == 1 else of_end) + head))
        return _Pipeline(plan, *passes)

    def _layer(self, plan: Plan) -> _Layer:
        """The layer of a plan, from the cache if a plan with the same layer came before."""
        # Of the micro-batches only counts whether there are several, whose gradients must be added up.
        sums = plan.num_microbatches > 1
        axes = plan.tp, plan.cp, plan.cp_method, plan.ep, plan.sequence_parallel
        key = *axes, plan.micro_batch, plan.recompute, plan.precision, sums
        if key not in self._layers:
            self._layers[key] = self._new_layer(_layer_plan(plan))
        return self._layers[key]

    def _new_layer(self, plan: Plan) -> _Layer:
        """The layer of a plan that is reduced to its layer (`_layer_plan`)."""
        work, (embedding, head) = (one(self.model, plan, self._node, self.stack) for one in (layer, ends))
        return _Layer(
            forward=(self._gpu_seconds(work.forward), self._seconds(work.forward)),
            backward=(self._gpu_seconds(work.backward), self._seconds(work.backward)),
            again=self._seconds(work.again),
            embedding=(self._seconds(embedding[0]), self._seconds(embedding[1])),
            head=(self._seconds(head[0]), self._seconds(head[1])),
            binds_again=self._bottleneck(work.again),
            binds_embedding=self._bottleneck(embedding[0]),
            binds_head=self._bottleneck(head[0]),
        )

    def _gpu_seconds(self, work: Work) -> tuple[float, ...]:
        """Seconds of each field of the work at the calibrated rates, in the order of PARTS."""
        return tuple(map(truediv, work, self._rates))

    def _seconds(self, work: Work) -> float:
        """Seconds of this work: the GPU's, or those of the host that launches it, whichever is longer (SHARPNESS)."""
        gpu = sum(self._gpu_seconds(work))
        host = work.calls * self.stack.layer_launch * self.constants.launch
        longer = max(gpu, host)
        if not longer:
            return 0.0
        return longer * (1 + (min(gpu, host) / longer) ** SHARPNESS) ** (1 / SHARPNESS)

    def _bottleneck(self, work: Work) -> str:
        """The bottleneck of the field of the work that takes longest."""
        gpu = self._gpu_seconds(work)
        return PARTS[gpu.index(max(gpu))][1]  # a row of PARTS begins with field, bottleneck

    def _compute(self, plan: Plan, rank: int) -> list[Bar]:
        """The bars of one pipeline rank: its passes over all micro-batches, by what limits them."""
        layer, microbatches = self._layer(plan), plan.num_microbatches
        layers = microbatches * plan.layers_on_stage(self.model, rank)
        bars = [
            Bar(name, layers * forward + layers * backward, binds)
            for (_, binds, _, name), forward, backward in zip(PARTS, layer.forward[0], layer.backward[0], strict=True)
        ]
        # What waiting for the host adds to the GPU's own seconds.
        launches = sum(layers * (total - sum(gpu)) for gpu, total in (layer.forward, layer.backward))
        embedding = microbatches * sum(layer.embedding) if rank == 0 else 0.0
        head = microbatches * sum(layer.head) if rank == plan.pp - 1 else 0.0
        return [
            *bars,
            Bar("recomputation", layers * layer.again, layer.binds_again),
            Bar("embedding", embedding, layer.binds_embedding),
            Bar("head and loss", head, layer.binds_head),
            Bar("the host launches", launches, "host"),
        ]

    def _send(self, plan: Plan) -> tuple[float, float]:
        """(inside a node, network) seconds to send a micro-batch's activations on; each tensor rank sends its part."""
        if plan.pp == 1:
            return 0.0, 0.0
        key = plan.tp, plan.cp, plan.pp, plan.dp, plan.micro_batch
        if key not in self._sends:
            tokens = plan.micro_batch * (self.model.seq // plan.cp)
            size = 2 * tokens * self.model.hidden / plan.tp  # bytes, in 16 bits
            block = plan.tp * plan.cp * plan.dp
            inside, network = send_seconds(size, self.cluster, block=block, stages=plan.pp)
            self._sends[key] = inside / self.constants.inside, network / self.constants.network
        return self._sends[key]

    def _replica_bars(self, plan: Plan, forward: float, backward: float) -> list[Bar]:
        """Exposed traffic of gradients and parameters between replicas, and the optimizer's step.

        forward, backward: seconds of one micro-batch's passes, behind which traffic can hide. What one message hides
        behind is not available for the next. A flow (`ReplicaTraffic`) is one kind of traffic, such as the
        reduce-scatter of gradients: its seconds, the share of them that may hide, and the pass behind which they hide.
        """
        bars, available = [], {"forward": forward, "backward": backward}
        flows, optimizer = self._flows(plan)
        for flow, name in flows:
            seconds = flow.inside / self.constants.inside + flow.network / self.constants.network
            hidden = min(seconds * flow.hidden, available[flow.behind])
            available[flow.behind] -= hidden
            bars.append(Bar(name, flow.often * (seconds - hidden), "network" if flow.network else "NVLink"))
        return [*bars, Bar("optimizer", optimizer, "memory")]

    def _flows(self, plan: Plan) -> tuple[list[tuple[ReplicaTraffic, str]], float]:
        """All traffic between replicas with the names of its bars, and the seconds of the optimizer's step."""
        key = plan.tp, plan.cp, plan.pp, plan.dp, plan.ep, plan.zero, plan.precision, plan.num_microbatches
        if key not in self._replicas:
            flows, optimizer = [], 0.0
            layers = plan.layers_on_stage(self.model, 0)
            for params, shared_plan in self._replicated(plan):
                ending = "" if shared_plan is plan else " of experts"
                traffic = replica_traffic(params, layers, shared_plan, self.cluster, self.stack)
                flows += [(flow, f"{flow.name}{ending}") for flow in traffic]
                optimizer += optimizer_seconds(params, shared_plan, self.cluster) / self.constants.memory
            self._replicas[key] = flows, optimizer
        return self._replicas[key]

    def _replicated(self, plan: Plan) -> list[tuple[float, Plan]]:
        """Parameters of the fullest rank, with the plan that says how they are replicated.

        The weights of experts have fewer replicas than the rest, so they come as an entry of their own.
        """
        stages = {stage: params_per_rank(self.model, plan, stage) for stage in representative_stages(self.model, plan)}
        stage = max(stages, key=stages.get)
        params = stages[stage]
        if plan.ep == 1:
            return [(params, plan)]
        experts = expert_params(self.model, plan, stage)
        return [(params - experts, plan), (experts, plan.of_experts)]


def _layer_plan(plan: Plan) -> Plan:
    """The plan reduced to what one layer's work depends on, so that the caches of layer.py hit more often.

    Of the micro-batches only counts whether there are several, whose gradients must be added up. dp = ep is the
    smallest dp over which the experts can be spread.
    """
    few = min(plan.num_microbatches, 2)
    return plan.unchecked_copy(dp=plan.ep, pp=1, num_chunks=1, zero=0, shard_ranks=None, num_microbatches=few)


def _layers_of_parts(model: ModelSpec, plan: Plan) -> tuple[int, int]:
    """Layers of the first and of the last part of the pipeline, and of each part between them.

    The two ends may have one layer fewer than the others (see `Plan.layers_on_stage`).
    """
    parts = plan.pp * plan.num_chunks
    if model.num_layers % parts == 0:
        return model.num_layers // parts, model.num_layers // parts
    each = (model.num_layers + 2) // parts  # embedding and head count as a layer each, on the first and the last part
    return each - 1, each
