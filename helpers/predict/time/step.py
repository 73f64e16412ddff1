"""Predicts the seconds of a training step as a sum of bars: compute, memory, collectives, bubble, optimizer, host.

`step_time` is the planner's model of a step. It adds up layer.py (one layer on one rank), collectives.py and
pipeline.py. A stack is a training framework, such as Megatron-Core or FSDP; stacks.py says which traffic each one
overlaps and which kernels it has. Constants say how near a machine comes to the nominal rates of the data sheets;
before a calibration (calibrate.py) they are 1. offload_and_adapters.py changes the bars for two cheaper kinds of
training.

A search that asks for the steps of many plans takes a `StepModel`, which computes once what these plans share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import add, truediv
from typing import NamedTuple

from helpers.predict.memory.rank_memory import representative_stages
from helpers.predict.memory.states import expert_params, params_per_rank
from helpers.predict.time.bars import Bar, StepTime
from helpers.predict.time.collectives import ReplicaTraffic, optimizer_seconds, replica_traffic, send_seconds
from helpers.predict.time.dualpipe import DualPipeParts, StageSeconds, dualpipe_parts, runs_dualpipe
from helpers.predict.time.layer import Work, ends, layer
from helpers.predict.time.stacks import Stack
from helpers.predict.time.stage_layers import PassSeconds, PipelineSeconds, interleaved, layers_of_parts
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


def dualpipe_step_parts(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL
) -> DualPipeParts:
    """The parts of a step with DualPipe in seconds; their sum is `step_time(...).seconds`.

    Raises ValueError as `step_time`, and for a plan or a stack with which DualPipe cannot run.
    """
    step_time(model, plan, cluster, stack, constants)  # checks the plan
    if not runs_dualpipe(stack, plan):
        raise ValueError(
            f"dualpipe_step_parts: {stack.name} with pp={plan.pp} and {plan.num_microbatches} micro-batches is no "
            f"DualPipe; take the stack DeepSeek, an even pp, and an even number of micro-batches from 2 * pp on"
        )
    return StepModel(model, cluster, stack, constants).dualpipe_parts(plan)


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


FIELDS = tuple(field for field, *_ in PARTS)


class _Layer(NamedTuple):
    """A layer and the ends of the model, at calibrated rates.

    forward, backward, again: seconds of each field of `Work`, in the order of PARTS, and of all of them together with
    the host's launches. weights: of backward those for the gradients of weights. embedding, head: seconds of (forward,
    backward). The names that begin with `binds` are the bottlenecks.
    """

    forward: tuple[tuple[float, ...], float]
    backward: tuple[tuple[float, ...], float]
    again: float
    weights: float
    embedding: tuple[float, float]
    head: tuple[float, float]
    binds_again: str
    binds_embedding: str
    binds_head: str


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
        dense = (model.of_dense_layers, cluster, stack, constants)
        self._dense = StepModel(*dense) if model.dense_layers else None  # of the first layers, which have no experts
        self._pipelines: dict[tuple, PipelineSeconds] = {}
        self._replicas: dict[tuple, tuple[list[tuple[ReplicaTraffic, str]], float]] = {}
        self._sends: dict[tuple, tuple[float, float]] = {}

    def step(self, plan: Plan) -> StepTime:
        """The step as bars: the busiest rank's compute, what its pipeline adds, and what its replicas add."""
        if runs_dualpipe(self.stack, plan):
            return self._dualpipe_step(plan)
        plan, microbatches = interleaved(self.model, plan, self.stack), plan.num_microbatches
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

    def dualpipe_parts(self, plan: Plan) -> DualPipeParts:
        """The parts of a step with DualPipe."""
        stages = [self._stage_seconds(plan, stage) for stage in range(plan.pp)]
        optimizer = sum(bar.seconds for bar in self._bars_after_dualpipe(plan))
        return dualpipe_parts(stages, plan.num_microbatches, optimizer=optimizer)

    def _bars_after_dualpipe(self, plan: Plan) -> list[Bar]:
        """What follows the last backward, so that nothing hides it; twice, because a rank has two stages."""
        bars = [bar._replace(seconds=2 * bar.seconds) for bar in self._replica_bars(plan, 0.0, 0.0)]
        return [*bars, Bar("step's constant", self.constants.step, "host")]

    def _dualpipe_step(self, plan: Plan) -> StepTime:
        """The step with DualPipe as bars, one for each of its parts."""
        parts, stage = self.dualpipe_parts(plan), self._stage_seconds(plan, 1)
        is_hidden = stage.compute >= stage.exchange
        bars = [
            Bar("forwards alone", parts.forward, "tensor cores"),
            Bar("gradients of inputs alone", parts.backward_input, "tensor cores"),
            Bar("gradients of weights alone", parts.backward_weight, "tensor cores"),
            Bar("forwards with backwards", parts.overlapped, "tensor cores" if is_hidden else "network"),
            Bar("bubble", parts.bubble, "waiting"),
            *self._bars_after_dualpipe(plan),
        ]
        return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))

    def _stage_seconds(self, plan: Plan, stage: int) -> StageSeconds:
        """Seconds of a micro-batch on a pipeline stage: of each pass alone, and of a pair of overlapped passes."""
        send, layer = sum(self._send(plan)), self._layer(plan)
        # The embedding is on the first stage, the head on the last one.
        forward, backward = (
            embedding * (stage == 0) + head * (stage == plan.pp - 1)
            for embedding, head in zip(layer.embedding, layer.head, strict=True)
        )
        exchange = weights = products = 0.0
        for number, kind in self._layers_on(plan, stage):
            both = dict(zip(FIELDS, map(add, kind.forward[0], kind.backward[0]), strict=True))
            exchange += number * (both["routed"] + both["routed_network"])
            products += number * (both["products"] + both["attention"])
            forward += number * kind.forward[1]
            backward += number * (kind.backward[1] + kind.again)
            weights += number * kind.weights
        free = 1 - self.stack.communication_sms / self.cluster.gpu.num_sms  # share of SMs without all-to-alls
        return StageSeconds(
            forward=forward + send, backward_input=backward - weights + send, backward_weight=weights,
            compute=forward + backward - exchange + (1 / free - 1) * products, exchange=exchange + 2 * send,
        )  # fmt: skip

    def least_seconds(self, plan: Plan, chunks: int | None = None) -> float:
        """A lower bound of a step's seconds that is fast to compute, by which the search drops plans.

        It counts the busiest rank's compute, and 0.9 of one micro-batch's pass through the other ranks: a little less
        than the whole pass, so that it stays a lower bound where the stages differ. With chunks, the busiest rank waits
        only while a micro-batch passes one chunk of each other rank, so that pass is divided by the number of chunks.
        chunks: this number, if it is not that of the plan.
        """
        if runs_dualpipe(self.stack, plan):
            return 0.9 * self.dualpipe_parts(plan).seconds
        loads = self.pipeline(plan).loads
        busiest = max(loads)
        return plan.num_microbatches * busiest + 0.9 * (sum(loads) - busiest) / (chunks or plan.num_chunks)

    def layer_seconds(self, plan: Plan) -> float:
        """Seconds of one layer's forward and backward for one micro-batch, without recomputation."""
        return self._layer(plan).forward[1] + self._layer(plan).backward[1]

    def pipeline(self, plan: Plan) -> PipelineSeconds:
        """The passes of the plan, from the cache if a plan with the same passes came before, of any ZeRO stage."""
        axes = plan.tp, plan.cp, plan.cp_method, plan.pp, plan.dp, plan.ep, plan.num_chunks
        key = *axes, plan.micro_batch, plan.num_microbatches, plan.recompute, plan.precision
        key += (plan.last_stage_layers,)
        if key not in self._pipelines:
            self._pipelines[key] = self._new_pipeline(plan)
        return self._pipelines[key]

    def _new_pipeline(self, plan: Plan) -> PipelineSeconds:
        """The passes of the plan, with sends and recomputation."""
        layer, send = self._layer(plan), sum(self._send(plan))
        layers_of_first, layers_between, layers_of_last = layers_of_parts(self.model, plan)
        num_dense = min(self.model.dense_layers, layers_of_first)
        dense = self._dense_layer(plan) if num_dense else layer
        passes = []
        # again: what backward computes again of forward
        each = [(one.forward[1], one.backward[1] + one.again) for one in (layer, dense)]
        for of_layer, of_dense, embedding, head in zip(*each, layer.embedding, layer.head, strict=True):
            first = (layers_of_first - num_dense) * of_layer + num_dense * of_dense + send + embedding
            between, last = layers_between * of_layer + send, layers_of_last * of_layer + send
            last = first if plan.pp == 1 else last  # a pipeline of one stage has a single part, which is both ends
            passes.append(PassSeconds(plan.pp, plan.num_chunks, first, between, last + head))
        return PipelineSeconds(plan, *passes)

    def _dense_layer(self, plan: Plan) -> _Layer:
        """The layer without experts of a model that begins with such layers."""
        return self._dense._layer(plan.unchecked_copy(ep=1))

    def _layers_on(self, plan: Plan, rank: int) -> list[tuple[int, _Layer]]:
        """The layers of a pipeline rank, as the number of each kind and the layer."""
        dense = plan.dense_layers_on_stage(self.model, rank)
        others = plan.layers_on_stage(self.model, rank) - dense, self._layer(plan)
        return [others, (dense, self._dense_layer(plan))] if dense else [others]

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
            weights=work.backward.weights / self.constants.products,
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
        kinds = [(microbatches * number, one) for number, one in self._layers_on(plan, rank)]
        bars = [
            Bar(name, sum(layers * (one.forward[0][part] + one.backward[0][part]) for layers, one in kinds), binds)
            for part, (_, binds, _, name) in enumerate(PARTS)
        ]
        # What waiting for the host adds to the GPU's own seconds.
        launches = sum(
            layers * (total - sum(gpu)) for layers, one in kinds for gpu, total in (one.forward, one.backward)
        )
        embedding = microbatches * sum(layer.embedding) if rank == 0 else 0.0
        head = microbatches * sum(layer.head) if rank == plan.pp - 1 else 0.0
        return [
            *bars,
            Bar("recomputation", sum(layers * one.again for layers, one in kinds), layer.binds_again),
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
