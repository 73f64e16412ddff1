"""Defines the planner's records: the request, and a plan with its estimated memory, step time, reasons and warnings.

It also names the strategies (DDP, ZeRO-1, TP + PP + DP and so on) and describes a plan in a few words. All files of
advice/ use these records. `words("plan", parts=…)` returns the text of that key in the reader's language, from
words/advice.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from helpers.learner.words import book
from helpers.predict.advice.fit import USABLE_SHARE
from helpers.predict.time.convolutions import ResNet
from helpers.predict.time.stacks import MEGATRON_CORE, Stack
from helpers.predict.time.step import NOMINAL, Constants, StepTime
from helpers.quantities.units import format_bytes, format_seconds
from helpers.records import MemoryBreakdown
from helpers.specs import Cluster, ModelSpec, Plan
from helpers.specs.trainable import check_trainable

words = book("advice")
KINDS, STEPS = book("draw"), book("steps")  # name the kinds of memory (texts of pictures), and bars and bottlenecks
TRAFFIC = ("NVLink", "network")  # the bottlenecks where ranks wait for bytes, inside a node and between nodes


class StrategyName:
    """The names of the strategies. "TP" and "PP" alone use the remaining GPUs for data parallelism.

    "offload" keeps gradients and optimizer on the host. CONTEXT stands for all plans with context parallelism.
    """

    ONE_GPU, DDP, PP, TP, OFFLOAD = "one GPU", "DDP", "PP", "TP", "offload"
    ZERO_1, ZERO_2, ZERO_3 = "ZeRO-1", "ZeRO-2", "ZeRO-3"
    PP_ZERO, TP_ZERO, CONTEXT = "PP + DP + ZeRO-1", "TP + DP + ZeRO", "with CP"
    MIXED, MIXED_ZERO_1 = "TP + PP + DP", "TP + PP + DP + ZeRO-1"
    LORA, QLORA = "LoRA", "QLoRA"


# What these strategies add to plain data parallelism or ZeRO stands in no field of a Plan.
NOT_IN_PLAN = (StrategyName.OFFLOAD, StrategyName.LORA, StrategyName.QLORA)
# From the smallest change to a training script to the largest.
STRATEGIES = (
    StrategyName.DDP, StrategyName.ZERO_1, StrategyName.ZERO_2, StrategyName.ZERO_3, StrategyName.PP,
    StrategyName.PP_ZERO, StrategyName.TP, StrategyName.TP_ZERO, StrategyName.MIXED, StrategyName.MIXED_ZERO_1,
    StrategyName.CONTEXT,
)  # fmt: skip


def strategy_of(plan: Plan) -> str:
    """The name of a plan's strategy, by what it splits and shards."""
    if plan.world_size == 1:
        return StrategyName.ONE_GPU
    if plan.cp > 1:
        return StrategyName.CONTEXT
    if plan.tp > 1 and plan.pp > 1:
        return StrategyName.MIXED_ZERO_1 if plan.zero else StrategyName.MIXED
    if plan.tp > 1:
        return StrategyName.TP_ZERO if plan.zero else StrategyName.TP
    if plan.pp > 1:
        return StrategyName.PP_ZERO if plan.zero else StrategyName.PP
    return (StrategyName.DDP, StrategyName.ZERO_1, StrategyName.ZERO_2, StrategyName.ZERO_3)[plan.zero]


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The checked arguments of `advise`. global_batch: sequences (or images) of a step over all ranks.

    precision: None lets the planner choose: it takes fp32 gradients where several micro-batches are added up, if they
    fit. stack: the training framework, such as Megatron-Core, whose overlap and kernels decide the step's time.
    constants: how near the machine comes to its nominal rates; NOMINAL stands for no calibration.
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
        """Tokens of a step; for a ResNet, images."""
        return self.global_batch * getattr(self.model, "seq", 1)


@dataclass(frozen=True, kw_only=True)
class PlanEstimate:
    """A plan with its estimated memory and step, or a strategy without a plan.

    memory: of the fullest rank, which is of pipeline stage `stage`. mfu, tokens_per_second: of the step. host_bytes: of
    a node's memory, under offload. plan and memory are None where a strategy cannot run here, and step is None where
    the plan does not fit; `why` then says so. reasons: sentences about why the plan is ranked where it is. warnings:
    what speaks against it, a sentence by its kind (`ranking.warnings`). is_tied: whether the planner cannot tell its
    step from the fastest one's.
    """

    name: str
    plan: Plan | None = None
    stage: int = 0
    memory: MemoryBreakdown | None = None
    host_bytes: int = 0
    step: StepTime | None = None
    mfu: float = 0.0
    tokens_per_second: float = 0.0
    is_chosen: bool = False
    is_tied: bool = False
    why: str = ""
    reasons: tuple[str, ...] = ()
    warnings: Mapping[str, str] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether the plan fits; only then it has a step."""
        return self.step is not None

    @property
    def seconds(self) -> float | None:
        """Seconds of the step, None without a step."""
        return self.step and self.step.seconds  # `and` gives None without a step

    @property
    def step_text(self) -> str:
        """The step time with its 80 % interval, such as "16.9 s (13.5 s to 21.1 s)"."""
        low, high = map(format_seconds, self.step.interval)
        return words("interval", step=format_seconds(self.seconds), low=low, high=high)

    @property
    def shares(self) -> dict[str, float]:
        """Seconds of the step by bottleneck, such as "network" or "waiting"; empty without a step."""
        return self.step.by_bottleneck if self.step else {}

    @property
    def bubble(self) -> float:
        """The share of the step in which the busiest pipeline stage waits."""
        return self.shares.get("waiting", 0.0) / self.seconds

    @property
    def traffic(self) -> float:
        """The share of the step in which ranks wait for messages."""
        return sum(self.shares.get(name, 0.0) for name in TRAFFIC) / self.seconds

    @property
    def title(self) -> str:
        """The strategy's name as it is shown: the axes of a mixed plan, or the name in the reader's language."""
        if self.name in (StrategyName.CONTEXT, StrategyName.MIXED) and self.plan:
            axes = " + ".join(axis.upper() for axis in ("tp", "cp", "pp", "dp") if getattr(self.plan, axis) > 1)
            return f"{axes} + ZeRO-{self.plan.zero}" if self.plan.zero else axes
        # Names such as "ZeRO-1" are the same in all languages and have no entry in the texts.
        return words(f"name.{self.name}") if f"name.{self.name}" in words else self.name

    @property
    def plan_text(self) -> str:
        """The plan in a few words, a dash without a plan."""
        return "–" if self.plan is None else describe_plan(self.plan)

    @property
    def layout_text(self) -> str:
        """The plan's axes and ZeRO stage alone, as short as a table needs them: "TP8 PP16 DP128 ZeRO-1"."""
        plan = self.plan
        sizes = {"TP": plan.tp, "CP": plan.cp, "PP": plan.pp, "DP": plan.dp, "EP": plan.ep}
        parts = [f"{name}{size}" for name, size in sizes.items() if size > 1]
        parts += [f"ZeRO-{plan.zero}"] if plan.zero else []
        parts += [self.title] if self.name in NOT_IN_PLAN or not parts else []
        return " ".join(parts)

    @property
    def bottleneck(self) -> str:
        """The bottleneck of most seconds of the step, such as "network"."""
        return max(self.shares, key=self.shares.get)

    def trainer_refusal(self, model: ModelSpec | ResNet) -> str:
        """Why this course's Trainer refuses the plan, in its own words; empty where it runs the plan."""
        if self.name in NOT_IN_PLAN:
            return words("trainer.lacks", name=self.title)
        try:
            check_trainable(self.plan, 4 * model.num_params)  # the Trainer has its weights in fp32
        except ValueError as error:
            return str(error)
        return ""

    def memory_text(self, usable: float) -> str:
        """A sentence about the bytes of the fullest rank, and the kind that takes most."""
        most = self.memory.dominant
        # In KINDS, "optimizer" is the step that the optimizer makes; its state is meant here.
        kind = book("memory")("kind_optimizer") if most == "optimizer" else KINDS(f"kind.{most}")
        sizes = {"held": self.memory.total, "usable": usable, "size": getattr(self.memory, most)}
        return words("why.memory", kind=kind, **{name: format_bytes(size) for name, size in sizes.items()})


def describe_plan(plan: Plan) -> str:
    """A plan in a few words: "TP 8 x PP 4 x DP 2, ZeRO-1, micro-batch 1 x 64, 4 chunks, recompute full"."""
    sizes = {"TP": plan.tp, "CP": plan.cp, "PP": plan.pp, "DP": plan.dp}
    spread = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or words("plan_single")
    parts = [spread, *([f"EP {plan.ep}"] if plan.ep > 1 else []), *([f"ZeRO-{plan.zero}"] if plan.zero else [])]
    if plan.cp > 1 and plan.cp_method != Plan.cp_method:
        parts.append(words("plan_method", method=words(f"method.{plan.cp_method}")))
    if plan.shard_ranks:
        parts.append(words("plan_hybrid", ranks=plan.shard_ranks))
    parts.append(words("plan_rows", size=plan.micro_batch, count=plan.num_microbatches))
    if plan.num_chunks > 1:
        parts.append(words("plan_chunks", chunks=plan.num_chunks))
    if plan.last_stage_layers is not None:
        parts.append(words("plan_last_stage", layers=plan.last_stage_layers))
    if plan.precision == "mixed_fp32_grads":
        parts.append(words("plan_fp32"))
    elif plan.precision == "mixed" and plan.num_microbatches > 1:
        parts.append(words("plan_16_bits"))  # the sums of gradients over micro-batches
    if plan.fp8:
        parts.append("fp8")
    if plan.recompute != "none":
        parts.append(words("plan_again", what=plan.recompute))
    return words("plan", parts=parts)


def bottleneck_name(request: PlanRequest, name: str) -> str:
    """The name of a bottleneck as it is shown. "NVLink" stands for the link inside a node, which may be another one."""
    if name == "NVLink":
        return request.cluster.intra.name.split(" (")[0]  # "NVLink 4 (H100, one way)" without the parenthesis
    return STEPS(f"binds.{name}")


def bottleneck_sentence(request: PlanRequest, candidate: PlanEstimate) -> str:
    """The bottleneck of most seconds of the step, and the second one where the first has less than half of them."""
    ordered = sorted(candidate.shares.items(), key=lambda pair: -pair[1])  # most seconds first
    shown = ordered[:2] if ordered[0][1] < candidate.seconds / 2 else ordered[:1]
    texts = [
        words("reason.bound", what=bottleneck_name(request, name), share=100 * seconds / candidate.seconds)
        for name, seconds in shown
    ]
    return words("reason.binds", what=texts)
