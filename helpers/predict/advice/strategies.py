"""The strategies that a cluster can run, each with its best plan: memory by kind, traffic and an estimated step.

A strategy says what is split, and at which stage ZeRO shards. The search tries the sizes that the cluster has,
micro-batches by powers of 2, and recomputation off or full. Best: it fits, then the shortest step by `step_time.py`
(within 1 %), then no recomputation, then the least memory. Tensor parallelism stays inside a node; ranks are numbered
as in Megatron-LM: tp, dp, pp. Not tried: hybrid sharding, context and expert parallelism, interleaved schedules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from helpers.predict.advice.fit import USABLE_SHARE, fullest
from helpers.predict.time.step import Assumptions, StepEstimate, estimate_step
from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.specs import Cluster, ModelSpec, Plan
from helpers.units import format_bytes
from helpers.words import book

say, KINDS = book("advice"), book("draw")
LARGEST_MICRO_BATCH = 64  # sequences


class Name:
    """What the strategies are called. A "TP" or "PP" takes the GPUs that are left for data parallelism."""

    ONE_GPU, DDP, PP, TP, OFFLOAD = "one GPU", "DDP", "PP", "TP", "offload"
    ZERO_1, ZERO_2, ZERO_3 = "ZeRO-1", "ZeRO-2", "ZeRO-3"
    MIXED, MIXED_ZERO_1 = "TP + PP + DP", "TP + PP + DP + ZeRO-1"


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """splits: which of (tp, pp) exceed 1. zero: the stage over dp. offload: the optimizer lives on the host."""

    name: str
    splits: tuple[bool, bool] = (False, False)
    zero: int = 0
    offload: bool = False


@dataclass(frozen=True, kw_only=True)
class Work:
    """What shall be trained, and with what: the arguments of `advise`. global_batch: sequences of a step, all ranks."""

    model: ModelSpec
    cluster: Cluster
    global_batch: int
    precision: str = "mixed"
    optimizer: str = "adamw"
    attention: str = "flash"
    assumptions: Assumptions = Assumptions()

    @property
    def usable(self) -> float:
        """Bytes of a GPU that a plan may take."""
        return USABLE_SHARE * self.cluster.gpu.memory


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A strategy with its best plan, or where none fits the one that needs least memory.

    held: the fullest rank, of pipeline stage `stage`. host_bytes: of a node's memory. plan, held and estimate are None
    where the strategy cannot run here, and `why` says what stands against it. Once judged, `why` is the sentence that
    chooses it or leaves it out.
    """

    name: str
    plan: Plan | None = None
    stage: int = 0
    held: MemoryBreakdown | None = None
    host_bytes: int = 0
    estimate: StepEstimate | None = None
    fits: bool = False
    is_chosen: bool = False
    why: str = ""

    @property
    def seconds(self) -> float | None:
        """Of a step, estimated; where it does not fit, of the step that it would take."""
        return self.estimate and self.estimate.seconds

    @property
    def dominant(self) -> str:
        """The kind of memory that takes most."""
        return max(MEMORY_KINDS, key=lambda kind: getattr(self.held, kind))

    @property
    def title(self) -> str:
        """The name as it is shown; only names that are no abbreviations differ between languages."""
        return say(f"name.{self.name}") if f"name.{self.name}" in say else self.name

    @property
    def plan_words(self) -> str:
        """The plan as a few words: "TP 8 x PP 4 x DP 2, micro-batch 1 x 64, recompute full"."""
        if self.plan is None:
            return "–"
        sizes = {"TP": self.plan.tp, "PP": self.plan.pp, "DP": self.plan.dp}
        spread = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or say("plan_single")
        zero = [f"ZeRO-{self.plan.zero}"] if self.plan.zero else []
        again = [say("plan_again")] if self.plan.recompute == "full" else []
        rows = say("plan_rows", size=self.plan.micro_batch, count=self.plan.num_microbatches)
        return say("plan", parts=[spread, *zero, rows, *again])


def strategies(cluster: Cluster) -> tuple[Strategy, ...]:
    """Those that this cluster can be asked for, from the smallest change to a training script to the largest."""
    if cluster.world_size == 1:
        return Strategy(name=Name.ONE_GPU), Strategy(name=Name.OFFLOAD, offload=True)
    return (
        Strategy(name=Name.DDP), Strategy(name=Name.ZERO_1, zero=1), Strategy(name=Name.ZERO_2, zero=2),
        Strategy(name=Name.ZERO_3, zero=3),
        Strategy(name=Name.PP, splits=(False, True)), Strategy(name=Name.TP, splits=(True, False)),
        Strategy(name=Name.MIXED, splits=(True, True)), Strategy(name=Name.MIXED_ZERO_1, splits=(True, True), zero=1),
        Strategy(name=Name.OFFLOAD, zero=3, offload=True),
    )  # fmt: skip


def best(strategy: Strategy, work: Work) -> Candidate:
    """The strategy with its best plan; without a plan where none can run, and `why` says what stands against it."""
    found: list[Candidate] = []
    refusals: list[str] = []
    for plan in _plans(strategy, work, refusals.append):
        found.append(_candidate(strategy, work, plan))
    if not found:
        return Candidate(name=strategy.name, why=_refused(strategy, work, refusals))
    fitting = [one for one in found if one.fits]
    if not fitting:
        return _timed(strategy, work, min(found, key=lambda one: one.held.total))
    timed = [_timed(strategy, work, one) for one in fitting]
    fastest = min(one.seconds for one in timed)
    close = [one for one in timed if one.seconds <= 1.01 * fastest]
    return min(close, key=lambda one: (one.plan.recompute != "none", one.held.total))


def _candidate(strategy: Strategy, work: Work, plan: Plan) -> Candidate:
    stage, held = fullest(work.model, plan)
    host = 0
    if strategy.offload:
        host = held.optimizer * work.cluster.gpus_per_node
        held = replace(held, optimizer=0)
    return Candidate(
        name=strategy.name, plan=plan, stage=stage, held=held, host_bytes=host, fits=held.total <= work.usable
    )


def _timed(strategy: Strategy, work: Work, one: Candidate) -> Candidate:
    estimate = estimate_step(work.model, one.plan, work.cluster, work.assumptions, offload=strategy.offload)
    return replace(one, estimate=estimate)


def _plans(strategy: Strategy, work: Work, refuse: Callable[[str], None]) -> Iterator[Plan]:
    """Every plan of a strategy that uses all GPUs, divides the model and gives each rank whole sequences."""
    for tp, pp in _splits(strategy, work, refuse):
        dp = work.cluster.world_size // (tp * pp)
        if strategy.zero and dp == 1 and work.cluster.world_size > 1:
            continue
        if work.global_batch % dp:
            refuse(say("cannot.batch", batch=work.global_batch, ranks=dp))
            continue
        each = work.global_batch // dp
        for size in (2**n for n in range(LARGEST_MICRO_BATCH.bit_length())):
            if each % size:
                break
            for recompute in ("none", "full"):
                yield Plan(
                    dp=dp, tp=tp, pp=pp, zero=strategy.zero, micro_batch=size, num_microbatches=each // size,
                    sequence_parallel=tp > 1 and work.model.seq % tp == 0, recompute=recompute,
                    attention=work.attention, precision=work.precision, optimizer=work.optimizer,
                )  # fmt: skip


def _splits(strategy: Strategy, work: Work, refuse: Callable[[str], None]) -> Iterator[tuple[int, int]]:
    cluster, (has_tp, has_pp) = work.cluster, strategy.splits
    inside = [size for size in range(2, cluster.gpus_per_node + 1) if cluster.gpus_per_node % size == 0]
    for tp in inside if has_tp else [1]:
        if not _suits(work.model, Plan(tp=tp), refuse):
            continue
        left = cluster.world_size // tp
        for pp in [size for size in range(2, left + 1) if left % size == 0] if has_pp else [1]:
            block = cluster.world_size // pp  # ranks of a stage: whole nodes, or a node's equal part
            is_even = block % cluster.gpus_per_node == 0 or cluster.gpus_per_node % block == 0
            if is_even and pp <= work.model.num_layers and _suits(work.model, Plan(tp=tp, pp=pp), refuse):
                yield tp, pp


def _suits(model: ModelSpec, plan: Plan, refuse: Callable[[str], None]) -> bool:
    try:
        plan.check(model)
    except ValueError as error:
        part, whole = re.findall(r"(?:pp \* )?\w+=\d+", str(error))
        refuse(say("cannot.divide_heads" if "one another" in str(error) else "cannot.divide", part=part, whole=whole))
        return False
    return True


def _refused(strategy: Strategy, work: Work, refusals: list[str]) -> str:
    has_tp, has_pp = strategy.splits
    if has_tp and work.cluster.gpus_per_node == 1:
        return say("cannot.run", reason=say("cannot.one_card"))
    if refusals:
        return say("cannot.run", reason=refusals[-1])
    if has_tp and has_pp:
        return say("cannot.run", reason=say("cannot.too_few", gpus=work.cluster.world_size))
    return say("cannot.here", gpus=work.cluster.world_size)


def tensor_size_words(work: Work) -> str:
    """Which size of tensor parallelism inside a node the model refuses, and the next smaller one; empty if none."""
    cluster, refusals = work.cluster, []
    sizes = [size for size in range(cluster.gpus_per_node, 1, -1) if cluster.gpus_per_node % size == 0]
    able = [size for size in sizes if _suits(work.model, Plan(tp=size), refusals.append)]
    if not sizes or sizes[0] in able:
        return ""
    smaller = say("remark.smaller", size=able[0]) if able else say("remark.none_smaller")
    return say("remark.tp", size=sizes[0], reason=refusals[0], smaller=smaller)


def memory_words(candidate: Candidate, usable: float) -> str:
    """Whether it fits, and what takes most."""
    held, most = candidate.held, candidate.dominant
    kind = book("memory")("kind_optimizer") if most == "optimizer" else KINDS(f"kind.{most}")
    sizes = {"held": held.total, "usable": usable, "size": getattr(held, most)}
    return say("why.memory", kind=kind, **{name: format_bytes(size) for name, size in sizes.items()})
