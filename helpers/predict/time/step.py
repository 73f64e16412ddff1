"""What a rank sends in a training step under a plan on a cluster, by link, and an estimate of the seconds of the step.

Every plan is judged by the same assumptions, so the estimate compares plans; it does not promise a time:
- a GPU reaches `efficiency` of its dense 16-bit peak while it computes (0.4 is a rule of thumb: measure yours, and give
  less for fp32);
- every collective is a flat ring with alpha-beta seconds (`helpers.costs`), one message a layer and one for the tables;
- gradients travel behind the backward pass of a micro-batch, parameters behind a forward pass, and what is longer than
  that is exposed. DDP and ZeRO-1 send once a step, ZeRO-2 gradients and ZeRO-3 everything in each micro-batch;
- tensor parallelism's traffic is exposed, since the next layer waits for the sum (Shoeybi et al. 2019, section 3);
- 1F1B: a bubble of (p - 1) micro-batches (Narayanan et al. 2021, section 2.2.1); sends between stages hide behind
  compute, but for 2 (p - 1) of them as the pipeline fills and drains;
- offload: gradients go down behind backward, the host's step and the way up are exposed.
Left out: the optimizer's step on the GPU, contention between kinds of traffic, stragglers, loading of data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from helpers import costs
from helpers.predict.memory.states import gradient_bytes, optimizer_bytes, params_per_rank, weight_bytes
from helpers.predict.time.flops import forward_parts, step_flops
from helpers.predict.time.flops import mfu as model_flops_utilization
from helpers.predict.traffic.tensor_parallel import layer_payload_bytes, layer_sent_bytes
from helpers.specs import LINKS, Cluster, Link, ModelSpec, Plan
from helpers.specs.checks import check_positive


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What the estimate takes for granted. efficiency: share of a GPU's dense 16-bit peak that it reaches in compute.

    host_link: between a GPU and its host's memory. host_bandwidth: bytes a second of a node's memory, which bounds the
    optimizer's step on the CPU. Both count for offload alone. ValueError for an efficiency outside (0, 1].
    """

    efficiency: float = 0.4
    host_link: Link = LINKS["PCIe 4 x16"]
    host_bandwidth: float = 100e9

    def __post_init__(self) -> None:
        check_positive("Assumptions", "host_bandwidth", self.host_bandwidth)
        check_positive("Assumptions", "efficiency", self.efficiency)
        if self.efficiency > 1:
            raise ValueError(f"Assumptions: efficiency is {self.efficiency!r}, a share of the peak: above 0, at most 1")


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One kind of traffic of a step on the busiest rank. Bytes and seconds of the whole step.

    kind: "data", "tensor", "pipeline" or "host". payload: bytes handed to the operation; sent: bytes that leave the
    rank on a ring. seconds: on the link, exposed: those of them that compute does not hide.
    """

    kind: str
    what: str
    link: Link
    payload: float
    sent: float
    seconds: float
    exposed: float


@dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """Seconds of a step, an estimate. compute: with what is recomputed. bubble: of the pipeline. host: the CPU's step.

    peak_share: MFU, the model's operations over what all GPUs could do in that time.
    """

    compute: float
    bubble: float
    flows: tuple[Flow, ...]
    host: float = 0.0
    peak_share: float = 0.0

    @property
    def exposed(self) -> float:
        return sum(flow.exposed for flow in self.flows)

    @property
    def seconds(self) -> float:
        return self.compute + self.bubble + self.exposed + self.host


def global_batch(plan: Plan) -> int:
    """Sequences of a step over all ranks."""
    return plan.dp * plan.micro_batch * plan.num_microbatches


def tokens_that_hide(cluster: Cluster, assumptions: Assumptions = Assumptions(), *, dtype_bytes: int = 2) -> float:
    """Tokens of a rank's micro-batch from which on ZeRO-3's traffic between nodes hides behind its compute.

    A micro-batch of T tokens takes 6 N T / F seconds (F: operations a second that a GPU reaches), and ZeRO-3 sends the
    N parameters three times in 16 bits, 6 N / B seconds (B: bytes a second of a node's whole network, which a flat ring
    crosses once). Equal at T = F / B, whatever the model: 2 N T / F forward against 2 N / B, 4 N T / F backward against
    4 N / B. The same T hides DDP's all-reduce, 4 N / B, behind one backward pass. On one node B is a GPU's own link.
    dtype_bytes: of what travels; 4 bytes need twice the tokens. Attention's own products are left out, latency too.
    """
    reached, link = assumptions.efficiency * cluster.gpu.flops, cluster.link_for(cluster.world_size)
    return dtype_bytes / 2 * reached / link.bandwidth


@lru_cache(maxsize=4096)
def estimate_step(
    model: ModelSpec, plan: Plan, cluster: Cluster, assumptions: Assumptions = Assumptions(), *, offload: bool = False
) -> StepEstimate:
    """The estimate for one step of `plan` on `cluster`. offload: the optimizer's state and its step are on the host.

    Raises ValueError where the plan does not fit the model or does not use exactly the cluster's GPUs.
    """
    plan.check(model)
    if plan.world_size != cluster.world_size:
        raise ValueError(
            f"estimate_step: the plan is for {plan.world_size} ranks and the cluster has {cluster.world_size} GPUs; "
            "make dp * tp * pp * cp the number of GPUs"
        )
    return _Step(model, plan, cluster, assumptions).estimate(offload)


class _Step:
    """Seconds of a micro-batch on one stage, and what travels beside it."""

    def __init__(self, model: ModelSpec, plan: Plan, cluster: Cluster, assumptions: Assumptions) -> None:
        self.model, self.plan, self.cluster, self.assumptions = model, plan, cluster, assumptions
        rate = assumptions.efficiency * cluster.gpu.flops * cluster.world_size
        batch = global_batch(plan)
        self.compute = step_flops(model, batch=batch, recompute=plan.recompute) / rate
        self.forward = sum(forward_parts(model, batch=batch).values()) / rate / plan.num_microbatches
        self.backward = self.compute / plan.num_microbatches - self.forward
        self.params = max(params_per_rank(model, plan, stage) for stage in {0, plan.pp - 1, min(1, plan.pp - 1)})
        self.layers = max(plan.layers_on_stage(model, stage) for stage in {0, min(1, plan.pp - 1)})

    def estimate(self, offload: bool) -> StepEstimate:
        plan, tensor = self.plan, self._tensor()
        in_a_stage = self.compute + sum(flow.seconds for flow in tensor)
        bubble = (plan.pp - 1) * in_a_stage / plan.num_microbatches
        flows = (*self._data(), *tensor, *self._pipeline(in_a_stage / plan.num_microbatches))
        flows += self._to_host() if offload else ()
        host = self._cpu_step() if offload else 0.0
        seconds = self.compute + bubble + host + sum(flow.exposed for flow in flows)
        share = model_flops_utilization(
            self.model, batch=global_batch(plan), seconds=seconds, peak_flops=self.cluster.gpu.flops,
            num_gpus=plan.world_size,
        )  # fmt: skip
        return StepEstimate(compute=self.compute, bubble=bubble, flows=flows, host=host, peak_share=share)

    def _data(self) -> tuple[Flow, ...]:
        """Gradients, and under ZeRO parameters, over the data-parallel group."""
        plan, often = self.plan, self.plan.num_microbatches
        shards = plan.dp * plan.cp
        if shards == 1:
            return ()
        gradients, weights = self.params * min(4, gradient_bytes(plan)), self.params * weight_bytes(plan)
        if plan.zero == 0:
            return (self._collective("all_reduce of gradients", gradients, (0, 1), 1),)
        reduce = self._collective("reduce_scatter of gradients", gradients, (0, 1), 1 if plan.zero == 1 else often)
        if plan.zero < 3:
            return reduce, self._collective("all_gather of parameters", weights, (1, 0), 1)
        gather = self._collective("all_gather of parameters, forward", weights, (1, 0), often)
        again = self._collective("all_gather of parameters, backward", weights, (0, 1), often)
        beside = max(0.0, (again.seconds + reduce.seconds) / often - self.backward) * often  # both behind one backward
        part = beside / (again.seconds + reduce.seconds)
        return gather, _exposed(again, part * again.seconds), _exposed(reduce, part * reduce.seconds)

    def _collective(self, what: str, num_bytes: float, behind: tuple[int, int], often: int) -> Flow:
        """An operation on `num_bytes` bytes, `often` times, behind (forward, backward) of a micro-batch."""
        op, shards = what.split()[0], self.plan.dp * self.plan.cp
        link, messages = self.cluster.link_for(shards, stride=self.plan.tp), self.layers + 1
        took = messages * costs.seconds(op, num_bytes / messages, shards, link)
        hidden = behind[0] * self.forward + behind[1] * self.backward
        return Flow(
            kind="data", what=what, link=link, payload=often * num_bytes / (shards if op == "all_gather" else 1),
            sent=often * costs.sent_bytes(op, num_bytes, shards), seconds=often * took,
            exposed=often * max(0.0, took - hidden),
        )  # fmt: skip

    def _tensor(self) -> tuple[Flow, ...]:
        """The all-reduces inside the layers: 2 forward, 2 backward, and forward's again where it is recomputed."""
        plan, often = self.plan, self.plan.num_microbatches * self.layers
        if plan.tp == 1:
            return ()
        shape = dict(
            batch=plan.micro_batch, seq=self.model.seq // plan.cp, hidden=self.model.hidden,
            dtype_bytes=weight_bytes(plan),
        )  # fmt: skip
        link, passes = self.cluster.link_for(plan.tp), 6 if plan.recompute == "full" else 4
        one = layer_payload_bytes(**shape) / 4  # of one all-reduce
        sent = layer_sent_bytes(**shape, tp=plan.tp) * (passes + plan.sequence_parallel) / 4
        took = passes * costs.seconds("all_reduce", one, plan.tp, link)
        took += 2 * plan.sequence_parallel * costs.seconds("all_gather", one, plan.tp, link)
        payload, what = passes * one, "all_reduce of activations"
        if plan.sequence_parallel:  # an all_gather hands in a part, a reduce_scatter the whole
            payload = passes * (one + one / plan.tp) + 2 * one / plan.tp
            what = "all_gather, reduce_scatter of activations"
        flow = Flow(
            kind="tensor", what=what, link=link, payload=often * payload, sent=often * sent,
            seconds=often * took, exposed=often * took,
        )  # fmt: skip
        return (flow,)

    def _pipeline(self, microbatch: float) -> tuple[Flow, ...]:
        """Activations to the next stage and their gradients back; both directions can be busy at once."""
        plan, cluster = self.plan, self.cluster
        if plan.pp == 1:
            return ()
        block = plan.tp * plan.cp * plan.dp
        is_inside = block * plan.pp <= cluster.gpus_per_node
        link = cluster.intra if is_inside else cluster.network_for(min(block, cluster.gpus_per_node))
        numbers = plan.micro_batch * (self.model.seq // plan.cp) * self.model.hidden
        size = numbers * weight_bytes(plan) / (plan.tp if plan.sequence_parallel else 1)
        one, sends = link.seconds(size), 2 * plan.num_microbatches
        exposed = 2 * (plan.pp - 1) * one + plan.num_microbatches * max(0.0, one - microbatch)
        flow = Flow(
            kind="pipeline", what="sends between stages", link=link, payload=sends * size, sent=sends * size,
            seconds=sends * one, exposed=exposed,
        )  # fmt: skip
        return (flow,)

    @property
    def _offloaded(self) -> float:
        """Parameters whose optimizer state a rank keeps on the host."""
        return self.params / (self.plan.dp * self.plan.cp if self.plan.zero else 1)

    def _to_host(self) -> tuple[Flow, ...]:
        link = self.assumptions.host_link
        down, up = self._offloaded * gradient_bytes(self.plan), self._offloaded * weight_bytes(self.plan)
        took = link.seconds(down)
        return (
            Flow(
                kind="host", what="gradients to the host", link=link, payload=down, sent=down, seconds=took,
                exposed=max(0.0, took - self.backward),
            ),
            Flow(
                kind="host", what="parameters from the host", link=link, payload=up, sent=up, seconds=link.seconds(up),
                exposed=link.seconds(up),
            ),
        )  # fmt: skip

    def _cpu_step(self) -> float:
        """The host reads and writes the state, reads gradients and writes weights: 28 bytes a parameter with AdamW."""
        touched = 2 * optimizer_bytes(self.plan) + gradient_bytes(self.plan) + weight_bytes(self.plan)
        return self.cluster.gpus_per_node * self._offloaded * touched / self.assumptions.host_bandwidth


def _exposed(flow: Flow, seconds: float) -> Flow:
    return Flow(**{**vars(flow), "exposed": seconds})
