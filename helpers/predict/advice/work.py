"""What shall be trained and with what, and a plan with what is known of it: memory, step, reasons, warnings."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from helpers.learner.words import book
from helpers.predict.advice.fit import USABLE_SHARE
from helpers.predict.time.convolutions import ResNet
from helpers.predict.time.model import NOMINAL, Constants, StepTime
from helpers.predict.time.stacks import MEGATRON_CORE, Stack
from helpers.quantities.units import format_bytes, format_seconds
from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.specs import Cluster, ModelSpec, Plan

say, KINDS, STEPS = book("advice"), book("draw"), book("steps")
TRAFFIC = ("NVLink", "network")  # what binds where ranks wait for bytes


class Name:
    """What the strategies are called. A "TP" or "PP" takes the GPUs that are left for data parallelism."""

    ONE_GPU, DDP, PP, TP, OFFLOAD = "one GPU", "DDP", "PP", "TP", "offload"
    ZERO_1, ZERO_2, ZERO_3 = "ZeRO-1", "ZeRO-2", "ZeRO-3"
    PP_ZERO, TP_ZERO, CONTEXT = "PP + DP + ZeRO-1", "TP + DP + ZeRO", "with CP"
    MIXED, MIXED_ZERO_1 = "TP + PP + DP", "TP + PP + DP + ZeRO-1"
    LORA, QLORA = "LoRA", "QLoRA"


# From the smallest change to a training script to the largest.
STRATEGIES = (
    Name.DDP, Name.ZERO_1, Name.ZERO_2, Name.ZERO_3, Name.PP, Name.PP_ZERO, Name.TP, Name.TP_ZERO, Name.MIXED,
    Name.MIXED_ZERO_1, Name.CONTEXT,
)  # fmt: skip


def strategy(plan: Plan) -> str:
    """The name of what a plan splits and shards."""
    if plan.world_size == 1:
        return Name.ONE_GPU
    if plan.cp > 1:
        return Name.CONTEXT
    if plan.tp > 1 and plan.pp > 1:
        return Name.MIXED_ZERO_1 if plan.zero else Name.MIXED
    if plan.tp > 1:
        return Name.TP_ZERO if plan.zero else Name.TP
    if plan.pp > 1:
        return Name.PP_ZERO if plan.zero else Name.PP
    return (Name.DDP, Name.ZERO_1, Name.ZERO_2, Name.ZERO_3)[plan.zero]


@dataclass(frozen=True, kw_only=True)
class Work:
    """The arguments of `advise`. global_batch: sequences (or images) of a step, all ranks.

    precision: None takes the gradients that suit: fp32 ones where micro-batches are added up, as far as they fit.
    """

    model: ModelSpec | ResNet
    cluster: Cluster
    global_batch: int
    precision: str | None = None
    optimizer: str = "adamw"
    attention: str = "flash"
    stack: Stack = MEGATRON_CORE
    constants: Constants = NOMINAL

    @property
    def usable(self) -> float:
        """Bytes of a GPU that a plan may take."""
        return USABLE_SHARE * self.cluster.gpu.memory

    @property
    def tokens(self) -> int:
        """Of a step; of images, how many."""
        return self.global_batch * getattr(self.model, "seq", 1)


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A plan, or a strategy without one.

    held: the fullest rank, of pipeline stage `stage`. mfu, tokens_per_second: of its step. host_bytes: of a node's
    memory, under offload. plan and held are None where a strategy cannot run here, and step is None where it does not
    fit; `why` then says so. reasons: why it is there. warnings: what stands against it.
    """

    name: str
    plan: Plan | None = None
    stage: int = 0
    held: MemoryBreakdown | None = None
    host_bytes: int = 0
    step: StepTime | None = None
    mfu: float = 0.0
    tokens_per_second: float = 0.0
    is_chosen: bool = False
    why: str = ""
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.step is not None

    @property
    def seconds(self) -> float | None:
        return self.step and self.step.seconds

    @property
    def step_words(self) -> str:
        """ "16.9 s (13.5 s to 21.1 s)"."""
        low, high = map(format_seconds, self.step.interval)
        return say("interval", step=format_seconds(self.seconds), low=low, high=high)

    @property
    def shares(self) -> dict[str, float]:
        """Seconds of the step by what sets them: tensor cores, memory, NVLink, network, host or waiting."""
        total: dict[str, float] = defaultdict(float)
        for bar in self.step.bars if self.step else ():
            total[bar.binds] += bar.seconds
        return dict(total)

    @property
    def bubble(self) -> float:
        """The share of the step in which the busiest stage waits."""
        return self.shares.get("waiting", 0.0) / self.seconds

    @property
    def traffic(self) -> float:
        """The share of the step in which ranks wait for bytes of others."""
        return sum(self.shares.get(name, 0.0) for name in TRAFFIC) / self.seconds

    @property
    def dominant(self) -> str:
        """The kind of memory that takes most."""
        return max(MEMORY_KINDS, key=lambda kind: getattr(self.held, kind))

    @property
    def title(self) -> str:
        """The name as it is shown: of several axes those that the plan has; else in the language's words."""
        if self.name in (Name.CONTEXT, Name.MIXED) and self.plan:
            axes = " + ".join(axis.upper() for axis in ("tp", "cp", "pp", "dp") if getattr(self.plan, axis) > 1)
            return f"{axes} + ZeRO-{self.plan.zero}" if self.plan.zero else axes
        return say(f"name.{self.name}") if f"name.{self.name}" in say else self.name

    @property
    def plan_words(self) -> str:
        return "–" if self.plan is None else plan_words(self.plan)

    def memory_words(self, usable: float) -> str:
        """What it holds, and what takes most."""
        most = self.dominant
        kind = book("memory")("kind_optimizer") if most == "optimizer" else KINDS(f"kind.{most}")
        sizes = {"held": self.held.total, "usable": usable, "size": getattr(self.held, most)}
        return say("why.memory", kind=kind, **{name: format_bytes(size) for name, size in sizes.items()})


def plan_words(plan: Plan) -> str:
    """ "TP 8 x PP 4 x DP 2, ZeRO-1, micro-batch 1 x 64, 4 chunks, recompute full"."""
    sizes = {"TP": plan.tp, "CP": plan.cp, "PP": plan.pp, "DP": plan.dp}
    spread = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or say("plan_single")
    parts = [spread, *([f"EP {plan.ep}"] if plan.ep > 1 else []), *([f"ZeRO-{plan.zero}"] if plan.zero else [])]
    if plan.shard_ranks:
        parts.append(say("plan_hybrid", ranks=plan.shard_ranks))
    parts.append(say("plan_rows", size=plan.micro_batch, count=plan.num_microbatches))
    if plan.num_chunks > 1:
        parts.append(say("plan_chunks", chunks=plan.num_chunks))
    if plan.precision == "mixed_fp32_grads":
        parts.append(say("plan_fp32"))
    elif plan.precision == "mixed" and plan.num_microbatches > 1:
        parts.append(say("plan_16_bits"))
    if plan.fp8:
        parts.append("fp8")
    if plan.recompute != "none":
        parts.append(say("plan_again", what=plan.recompute))
    return say("plan", parts=parts)
