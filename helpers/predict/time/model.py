"""The seconds of a training step as a sum of terms, each with its bar: what computes, moves, sends and waits.

Terms stand in `terms/`, a page each. A stack (`stacks.py`) says what overlaps and which kernels there are; constants
(`calibrate.py`) say how near this machine comes to the nominal rates. Before calibration they are 1.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache

from helpers.predict.memory.states import feed_forward_params, params_per_rank
from helpers.predict.time.stacks import Stack
from helpers.predict.time.terms.collectives import send_seconds
from helpers.predict.time.terms.data import flows, optimizer_seconds
from helpers.predict.time.terms.layer import Work, ends, layer
from helpers.predict.time.terms.rhythm import pipeline_seconds
from helpers.specs import Cluster, ModelSpec, Plan
from helpers.specs.checks import check_positive

SHARPNESS = 4  # of the crossing from "the host launches too slowly" to "the GPU is busy": kernels differ in length


@dataclass(frozen=True, kw_only=True)
class Constants:
    """How a machine and a stack differ from the nominal rates.

    products (attention's too), memory, inside (a node), network: shares of the nominal rate. launch: factor of the
    stack's seconds on the host per layer. step: seconds that a step costs beside all terms. ValueError unless above 0.
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
UNCALIBRATED = 1.25  # the 80 % interval's factor before calibration: 77 % of published rows lie within 20 %


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A term of the step. binds: what sets its seconds: tensor cores, memory, NVLink, network, host or waiting."""

    name: str
    seconds: float
    binds: str


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The waterfall of a step: bars add up to its seconds. factor: the 80 % interval is seconds over it to times it."""

    bars: tuple[Bar, ...]
    factor: float = 1.0

    @property
    def seconds(self) -> float:
        return sum(bar.seconds for bar in self.bars)

    @property
    def interval(self) -> tuple[float, float]:
        return self.seconds / self.factor, self.seconds * self.factor

    @property
    def binds(self) -> str:
        """What takes most of the step."""
        total: dict[str, float] = defaultdict(float)
        for bar in self.bars:
            total[bar.binds] += bar.seconds
        return max(total, key=total.get)


def step_time(model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL) -> StepTime:
    """One step of `plan` on `cluster` under `stack`. ValueError for what does not fit, or is given and not modelled."""
    plan.check(model)
    if plan.world_size != cluster.world_size:
        raise ValueError(
            f"step_time: the plan is for {plan.world_size} ranks and the cluster has {cluster.world_size} GPUs; "
            "make dp * tp * pp * cp the number of GPUs"
        )
    _refuse(plan)
    plan = _interleaved(model, plan, stack)
    return _Step(model, plan, cluster, stack, constants).estimate()


def pass_seconds(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL
) -> tuple[list[float], list[float]]:
    """Seconds of a micro-batch's forward and backward on each of the pipeline's parts."""
    return _Step(model, plan, cluster, stack, constants).passes()


def least_seconds(
    model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants = NOMINAL
) -> float:
    """What the busiest rank computes and one micro-batch's way through the others: nearly all of a step, soon said."""
    ahead, behind = pass_seconds(model, plan, cluster, stack, constants)
    loads = [sum(ahead[rank :: plan.pp]) + sum(behind[rank :: plan.pp]) for rank in range(plan.pp)]
    busiest = max(loads)
    return plan.num_microbatches * busiest + 0.9 * (sum(loads) - busiest) / plan.num_chunks


def _refuse(plan: Plan) -> None:
    """Raise ValueError for what a plan can say and no term knows."""
    wanted = {
        "precision": (plan.precision, ("mixed", "mixed_fp32_grads", "mixed_both_grads")),
        "schedule": (plan.schedule, ("one_f_one_b", "interleaved")),
    }
    for name, (value, known) in wanted.items():
        if value not in known:
            raise ValueError(f"step_time: {name}={value!r} is not modelled; choose one of {', '.join(known)}")
    if plan.num_chunks > 1 and plan.num_microbatches % plan.pp:
        raise ValueError(
            f"step_time: {plan.num_microbatches} micro-batches do not divide by pp={plan.pp}, which chunks ask for; "
            "choose a multiple, or num_chunks=1"
        )


def _interleaved(model: ModelSpec, plan: Plan, stack: Stack) -> Plan:
    """The plan with the chunks of a stack that always interleaves; as it is where they do not come out even."""
    layers, ends = model.num_layers, model.num_layers + 2
    if plan.pp == 1 or plan.num_chunks > 1 or not stack.chunk_layers or plan.num_microbatches % plan.pp:
        return plan
    for whole in (layers, ends):
        if whole % (plan.pp * stack.chunk_layers) == 0:
            return replace(plan, num_chunks=whole // (plan.pp * stack.chunk_layers))
    return plan


# A field of Work, what binds there, the constant that is a share of its rate, and the bar's name.
PARTS = (
    ("products", "tensor cores", "products", "products"),
    ("attention", "tensor cores", "products", "attention"),
    ("memory", "memory", "memory", "norms, activations, sums of gradients"),
    ("inside", "NVLink", "inside", "tensor parallelism, in a node"),
    ("network", "network", "network", "tensor parallelism, between nodes"),
    ("routed", "NVLink", "inside", "all-to-alls of experts, in a node"),
    ("routed_network", "network", "network", "all-to-alls of experts, between nodes"),
)


class _Step:
    """Seconds of one step. A part is one of the pipeline's pp * num_chunks."""

    def __init__(self, model: ModelSpec, plan: Plan, cluster: Cluster, stack: Stack, constants: Constants) -> None:
        self.model, self.plan, self.cluster, self.stack, self.constants = model, plan, cluster, stack, constants
        one = _of_one_layer(plan)
        self.layer, self.ends = layer(model, one, cluster, stack), ends(model, one, cluster, stack)
        self.counts = _layers(model, plan)
        self.send = self._send()

    def estimate(self) -> StepTime:
        plan, often = self.plan, self.plan.num_microbatches
        ahead, behind = self.passes()
        loads = [sum(ahead[rank :: plan.pp]) + sum(behind[rank :: plan.pp]) for rank in range(plan.pp)]
        busiest = max(loads)
        whole = pipeline_seconds(plan.pp, often, plan.num_chunks, ahead, behind)
        bars = self._compute(loads.index(busiest))
        if plan.pp > 1:
            sends = 2 * often * plan.num_chunks * sum(self.send)
            bars.append(Bar(name="sends between stages", seconds=sends, binds="network" if self.send[1] else "NVLink"))
            bars.append(Bar(name="bubble", seconds=whole - often * busiest, binds="waiting"))
        bars += self._data(sum(ahead[:: plan.pp]), sum(behind[:: plan.pp]))
        bars.append(Bar(name="step's constant", seconds=self.constants.step, binds="host"))
        return StepTime(bars=tuple(bar for bar in bars if bar.seconds > 0))

    def _gpu(self, work: Work) -> dict[str, float]:
        return {part: getattr(work, part) / getattr(self.constants, share) for part, _, share, _ in PARTS}

    def _spent(self, work: Work) -> float:
        """Seconds of this work: the GPU's, or the host's that launches it, whichever is longer."""
        gpu = sum(self._gpu(work).values())
        host = work.calls * self.stack.layer_launch * self.constants.launch
        longer = max(gpu, host)
        if not longer:
            return 0.0
        return longer * (1 + (min(gpu, host) / longer) ** SHARPNESS) ** (1 / SHARPNESS)

    def passes(self) -> tuple[list[float], list[float]]:
        """Seconds of a micro-batch's forward and backward on each part, sends too."""
        send = sum(self.send)
        forward, backward = self._spent(self.layer.forward), self._spent(self.layer.backward)
        backward += self._spent(self.layer.again)
        ahead = [count * forward + send for count in self.counts]
        behind = [count * backward + send for count in self.counts]
        for place, (there, back) in ((0, self.ends.embedding), (-1, self.ends.head)):
            ahead[place] += self._spent(there)
            behind[place] += self._spent(back)
        return ahead, behind

    def _compute(self, rank: int) -> list[Bar]:
        """The bars of the busiest rank's passes over all micro-batches."""
        plan, often = self.plan, self.plan.num_microbatches
        layers = often * sum(self.counts[rank :: plan.pp])
        seconds: dict[str, float] = defaultdict(float)
        launches = 0.0
        for work in (self.layer.forward, self.layer.backward):
            gpu = self._gpu(work)
            for part, took in gpu.items():
                seconds[part] += layers * took
            launches += layers * (self._spent(work) - sum(gpu.values()))
        bars = [Bar(name=name, seconds=seconds[part], binds=binds) for part, binds, _, name in PARTS]
        again = layers * self._spent(self.layer.again)
        bars.append(Bar(name="recomputation", seconds=again, binds=self._what_binds(self.layer.again)))
        for name, works, is_here in (
            ("embedding", self.ends.embedding, rank == 0), ("head and loss", self.ends.head, rank == plan.pp - 1),
        ):  # fmt: skip
            took = often * is_here * sum(map(self._spent, works))
            bars.append(Bar(name=name, seconds=took, binds=self._what_binds(works[0])))
        bars.append(Bar(name="the host launches", seconds=launches, binds="host"))
        return bars

    def _what_binds(self, work: Work) -> str:
        gpu = self._gpu(work)
        return max(PARTS, key=lambda part: gpu[part[0]])[1]

    def _send(self) -> tuple[float, float]:
        """(inside, network) of a micro-batch's activations to the next stage: each tensor rank sends its part."""
        plan = self.plan
        if plan.pp == 1:
            return 0.0, 0.0
        size = 2 * plan.micro_batch * (self.model.seq // plan.cp) * self.model.hidden / plan.tp
        one = send_seconds(size, self.cluster, block=plan.tp * plan.cp * plan.dp, stages=plan.pp)
        return one[0] / self.constants.inside, one[1] / self.constants.network

    def _data(self, forward: float, backward: float) -> list[Bar]:
        """Exposed traffic of gradients and parameters, and the optimizer's step."""
        plan, c = self.plan, self.constants
        bars, cover, step = [], {"forward": forward, "backward": backward}, 0.0
        for params, among in self._replicated():
            for flow in flows(params, sum(self.counts[:: plan.pp]), among, self.cluster, self.stack):
                took = flow.inside / c.inside + flow.network / c.network
                hidden = min(took * flow.hidden, cover[flow.behind])
                cover[flow.behind] -= hidden
                binds = "network" if flow.network else "NVLink"
                name = flow.name if among is plan else f"{flow.name} of experts"
                bars.append(Bar(name=name, seconds=flow.often * (took - hidden), binds=binds))
            step += optimizer_seconds(params, among, self.cluster) / c.memory
        return [*bars, Bar(name="optimizer", seconds=step, binds="memory")]

    def _replicated(self) -> list[tuple[float, Plan]]:
        """Parameters of the fullest rank, with the plan that says which ranks hold them too; experts have their own."""
        model, plan = self.model, self.plan
        params = max(params_per_rank(model, plan, stage) for stage in {0, plan.pp - 1, min(1, plan.pp - 1)})
        if plan.ep == 1:
            return [(params, plan)]
        experts = sum(self.counts[:: plan.pp]) * feed_forward_params(model, plan)
        return [(params - experts, plan), (experts, plan.of_experts)]


@lru_cache(maxsize=16384)
def _of_one_layer(plan: Plan) -> Plan:
    """What of a plan a layer's work depends on: plans that differ in the rest share it."""
    few = min(plan.num_microbatches, 2)
    return replace(plan, dp=plan.ep, pp=1, num_chunks=1, zero=0, shard_ranks=None, num_microbatches=few)


def _layers(model: ModelSpec, plan: Plan) -> list[int]:
    """Layers of each part of the pipeline, in order; where the ends hold one fewer, see `Plan.layers_on_stage`."""
    parts = plan.pp * plan.num_chunks
    if model.num_layers % parts == 0:
        return [model.num_layers // parts] * parts
    each = (model.num_layers + 2) // parts
    return [each - (part in (0, parts - 1)) for part in range(parts)]
