"""Finds good plans to train a model on a cluster, and explains why other strategies are left out.

`advise` is the planner behind the command `plan`, chapter 11, the strategy explorer and the design rounds of the mock
interview. It turns its arguments into a `PlanRequest`, lists the plans that fit and estimates their steps (search.py),
ranks them (choice.py) and explains them (ranking.py), adds a published rule of thumb (rules.py), and returns an
`Advice`. A `PlanEstimate` is a plan with its memory and its step. `words("choice", …)` returns the text of that key in
the reader's language, from words/advice.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from helpers.predict.advice import summary
from helpers.predict.advice.choice import SHOWN, ranked, simplest_of
from helpers.predict.advice.other_training import adapter_plans, image_plans, offload_plans
from helpers.predict.advice.plans import PlanEstimate, PlanRequest, words
from helpers.predict.advice.ranking import (
    NO_BF16,
    alternative,
    reasons,
    remarks,
    strategies,
    with_warnings,
)
from helpers.predict.advice.rules import Rule, rule_for
from helpers.predict.advice.search import timed_plans
from helpers.predict.time.convolutions import ResNet
from helpers.predict.time.stacks import FSDP, MEGATRON_CORE
from helpers.predict.time.step import NOMINAL
from helpers.quantities.units import format_bytes
from helpers.specs import Cluster, ModelSpec, Plan
from helpers.specs.checks import check_count, check_one_of

DEFAULT_SEQUENCES = 512  # 4.2 million tokens with Llama 3's sequences of 8192, 0.5 million with GPT-2's of 1024


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The result of `advise`. `text`, the notebook's table, `page(path)` and `as_json()` all show it.

    best: up to ten plans of different layouts, of which the first is recommended; empty where none fits. num_tied: the
    number of layouts whose step cannot be told from the fastest one's; they come first in `best`, the simplest of them
    first. tied_seconds: the shortest and the longest of their steps. trainable: the best plan that this course's
    Trainer runs, None where nothing fits that it runs. candidates: each strategy with its best plan and
    why it is left out. simplest: the simplest plan that fits. searched: the number of plans that were
    examined. rule, rule_reason: the rule of thumb for this case, and the arithmetic by which it applies. alternative: a
    sentence about another plan where the first one fits only with warnings. remarks: sentences about what else the
    reader should know.
    """

    request: PlanRequest
    best: tuple[PlanEstimate, ...]
    candidates: tuple[PlanEstimate, ...]
    simplest: PlanEstimate | None
    searched: int
    num_tied: int = 0
    tied_seconds: tuple[float, float] = (0.0, 0.0)
    trainable: PlanEstimate | None = None
    rule: Rule | None = None
    rule_reason: str = ""
    alternative: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def chosen(self) -> PlanEstimate | None:
        """The recommended plan, None where nothing fits."""
        return self.best[0] if self.best else None

    @property
    def strategy(self) -> str | None:
        """The name of the chosen strategy, None where nothing fits."""
        return self.chosen and self.chosen.name

    @property
    def plan(self) -> Plan | None:
        """The recommended plan alone, None where nothing fits."""
        return self.chosen and self.chosen.plan

    def __getitem__(self, name: str) -> PlanEstimate:
        """The best plan of this strategy, such as "ZeRO-3". KeyError, listing them all, for another."""
        by_name = {candidate.name: candidate for candidate in self.candidates}
        if name not in by_name:
            raise KeyError(f"no strategy {name!r} here; there are {', '.join(by_name)}")
        return by_name[name]

    @property
    def choice(self) -> str:
        """The recommended plan with its step, in a sentence, or that nothing fits."""
        candidate = self.chosen
        if candidate is None:
            return words("no_choice", missing=self._missing())
        is_transformer = isinstance(self.request.model, ModelSpec)
        values = {"name": candidate.title, "plan": candidate.plan_text, "step": candidate.step_text}
        # whole: says that the MFU counts attention as a full matrix, without skipping its masked half.
        return words("choice", **values, share=100 * candidate.mfu, whole=is_transformer)

    @property
    def tie(self) -> str:
        """Which plans cannot be told apart, in a sentence; empty where nothing fits."""
        return summary.tie(self)

    @property
    def by_rule(self) -> str:
        """The rule of thumb for this case, in a sentence; empty where none applies."""
        if not self.rule:
            return ""
        # it ends in a space where `rule_reason` is empty
        return words("by_rule", case=self.rule.case, says=self.rule.says, because=self.rule_reason).rstrip()

    @property
    def is_calibrated(self) -> bool:
        """Whether measured steps have calibrated the estimates."""
        return self.request.constants != NOMINAL

    @property
    def sentence(self) -> str:
        """The recommended plan, its step, what it is tied with, the warnings about it, and the rule of thumb."""
        sentences = [self.choice, self.alternative, self.tie]
        if self.chosen:
            sentences += [] if self.is_calibrated else [words("uncalibrated")]
            sentences += [words("warned", words=warning) for warning in self.chosen.warnings.values()]
        # between two sentences: a space, in Chinese nothing
        return words("between").join(filter(None, (*sentences, self.by_rule)))

    def explain(self, place: int) -> str:
        """All that the planner knows about the plan at this place of the table, 1 for the first, as text.

        Raises ValueError for a place that the table does not have.
        """
        if isinstance(place, bool) or not isinstance(place, int) or not 1 <= place <= len(self.best):
            raise ValueError(words("no_row", given=place, count=len(self.best)))
        return summary.explanation(self, place)

    def _missing(self) -> str:
        """How many bytes even the lightest plan needs beyond what a GPU has; empty where no strategy can run at all."""
        lightest = min((candidate.memory.total for candidate in self.candidates if candidate.memory), default=0)
        sizes = {"least": lightest, "usable": self.request.usable, "missing": lightest - self.request.usable}
        return words("missing", **{name: format_bytes(size) for name, size in sizes.items()}) if lightest else ""

    @property
    def text(self) -> str:
        """The recommended plan, a table of the best plans, the first one's reasons, the marks, and the remarks."""
        return summary.text(self)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        from helpers.predict.advice import page as advice_page  # 20 ms that the command does not need

        return advice_page.table(self)

    def page(self, path: str | Path) -> Path:
        """Write one self-contained HTML page to print on A4, and return its path."""
        from helpers.predict.advice import page as advice_page

        target = Path(path)
        target.write_text(advice_page.page(self), encoding="utf-8")
        return target

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values for JSON: plans as dicts, seconds, bytes, shares."""
        values = {"global_batch": self.request.global_batch, "searched": self.searched, "sentence": self.sentence}
        values |= {"num_tied": self.num_tied, "tied_seconds": list(self.tied_seconds), "remarks": list(self.remarks)}
        values["best"] = [
            estimate_as_json(candidate) | {"trainer_refusal": candidate.trainer_refusal(self.request.model)}
            for candidate in self.best
        ]
        for name in ("simplest", "trainable"):
            values[name] = estimate_as_json(getattr(self, name)) if getattr(self, name) else None
        return values | {"strategies": [estimate_as_json(candidate) for candidate in self.candidates]}


def estimate_as_json(candidate: PlanEstimate) -> dict[str, Any]:
    """A plan with its estimate as plain values for JSON."""
    bars = [bar._asdict() for bar in candidate.step.bars] if candidate.step else []
    return {
        "name": candidate.name, "plan": asdict(candidate.plan) if candidate.plan else None, "fits": candidate.fits,
        "seconds": candidate.seconds,
        "bars": bars, "mfu": candidate.mfu, "tokens_per_second": candidate.tokens_per_second,
        # "held": bytes by kind of the fullest rank.
        "held": asdict(candidate.memory) if candidate.memory else None, "host_bytes": candidate.host_bytes,
        "why": candidate.why,
        "is_tied": candidate.is_tied,
        "reasons": list(candidate.reasons), "warnings": list(candidate.warnings.values()),
    }  # fmt: skip


def advise(
    model: ModelSpec | ResNet, cluster: Cluster, *, global_batch: int | None = None, seq: int | None = None,
    lora: int | None = None, **options: Any,
) -> Advice:  # fmt: skip
    """Find good plans to train `model` on all GPUs of `cluster`, and say why others are left out.

    The recommended plan is the simplest of those whose step cannot be told from the fastest one's (choice.py).

    global_batch: sequences of `model.seq` tokens (images of a ResNet) per step over all GPUs; default 512, or the next
    multiple of the GPUs. seq: tokens of a sequence, if not the model's. lora: train only adapters of this rank.
    options: precision, optimizer, attention as in Plan; stack, constants as in step_time. Raises ValueError for
    anything else than a model and a cluster, or a batch that no plan can divide.
    """
    if lora is not None:  # plain PyTorch with unfused kernels, to which Qwen's published times of LoRA lie nearer
        options = {"stack": FSDP, **options}
    request = plan_request(model, cluster, global_batch, seq, options)
    if isinstance(model, ResNet):
        return _advice_of_kind(request, list(image_plans(request)))
    if lora is not None:
        return _advice_of_kind(request, list(adapter_plans(request, lora)))
    estimates, searched = timed_plans(request)
    estimates = estimates or list(offload_plans(request))
    # `searched` does not count plans with offload, so where only these fit, their number stands for it.
    searched, estimates = max(searched, len(estimates)), with_warnings(request, estimates)
    candidates = strategies(request, estimates)
    if not estimates and all(candidate.plan is None for candidate in candidates):
        raise ValueError(words("cannot.batch_of_all", batch=request.global_batch, gpus=cluster.world_size))
    advice = _advice(request, estimates, candidates, searched)
    rule, rule_reason = rule_for(request, candidates, advice.chosen)
    return replace(
        advice, rule=rule, rule_reason=rule_reason, alternative=alternative(request, advice.chosen),
        remarks=remarks(request, advice.best, estimates, advice.simplest),
    )  # fmt: skip


def default_batch(cluster: Cluster) -> int:
    """The default number of sequences of a step: 512, or the next multiple of the GPUs."""
    return ceil(DEFAULT_SEQUENCES / cluster.world_size) * cluster.world_size


def plan_request(model, cluster, global_batch: int | None, seq: int | None, options: dict[str, Any]) -> PlanRequest:
    """The arguments of `advise` as one checked record. ValueError for arguments that cannot be planned."""
    if not isinstance(model, (ModelSpec, ResNet)) or not isinstance(cluster, Cluster):
        raise ValueError(
            f"advise takes a ModelSpec and a Cluster, such as PRESETS['llama3-8b'] and CLUSTERS['8 H100'], but got "
            f"{model!r} and {cluster!r}"
        )
    if seq is not None:
        model = replace(model, seq=seq)
    if global_batch is None:
        global_batch = default_batch(cluster)
    check_count("advise", "global_batch", global_batch)
    if options.get("precision") == "fp32":
        raise ValueError("advise: precision='fp32' has no rate in the model of time; choose 'mixed' or leave it out")
    for name in ("precision", "optimizer", "attention"):
        if options.get(name):
            check_one_of("advise", name, options[name], Plan.KNOWN[name])
    # GPUs without bf16 have no FlashAttention-2 either. They take a memory-efficient kernel, which is half as fast.
    if cluster.gpu.name.split()[0] in NO_BF16:  # the first word of a name such as "V100 SXM2"
        stack = options.get("stack", MEGATRON_CORE)
        options = {**options, "stack": replace(stack, flash=0.5 * stack.flash)}
    return PlanRequest(model=model, cluster=cluster, global_batch=global_batch, **options)


def _advice_of_kind(request: PlanRequest, tried: list[PlanEstimate]) -> Advice:
    """The advice for adapters or images: of the plans that were tried, those that fit, ranked.

    Raises ValueError where no plan divides the batch.
    """
    if not tried:
        raise ValueError(words("cannot.batch_of_all", batch=request.global_batch, gpus=request.cluster.world_size))
    estimates = with_warnings(request, [candidate for candidate in tried if candidate.fits])
    by_strategy: dict[str, list[PlanEstimate]] = {}
    for candidate in tried:
        by_strategy.setdefault(candidate.name, []).append(candidate)
    candidates = strategies(request, estimates, by_strategy)
    advice = _advice(request, estimates, candidates, len(tried))
    return replace(advice, remarks=remarks(request, advice.best, estimates, advice.simplest))


def _advice(
    request: PlanRequest, estimates: Sequence[PlanEstimate], candidates: tuple[PlanEstimate, ...], searched: int
) -> Advice:
    """The Advice without its rule and remarks: the best plans with their reasons, and the simplest plan.

    candidates: one plan per strategy. searched: the number of plans that were examined.
    """
    in_order = ranked(request, estimates)
    best = tuple(
        replace(candidate, reasons=reasons(request, candidate, in_order[0], estimates), is_chosen=place == 0)
        for place, candidate in enumerate(in_order[:SHOWN])
    )
    tied = [candidate.seconds for candidate in in_order if candidate.is_tied]
    trainable = ranked(request, [one for one in estimates if not one.trainer_refusal(request.model)])
    return Advice(
        request=request, best=best, candidates=candidates, searched=searched, num_tied=len(tied),
        tied_seconds=(min(tied), max(tied)) if tied else (0.0, 0.0),
        simplest=simplest_of(request, estimates) if estimates else None, trainable=next(iter(trainable), None),
    )  # fmt: skip
