"""The planner: which plan trains this model on this cluster, the ten best, and why not otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from helpers.predict.advice import page as advice_page
from helpers.predict.advice.plans import Ranked, Work, say
from helpers.predict.advice.ranking import (
    NO_BF16,
    best_of,
    instead,
    reasons,
    remarks,
    simplest_of,
    strategies,
    warned,
    without_numbers,
)
from helpers.predict.advice.rules import Rule, rule_for
from helpers.predict.advice.search import adapted, fitting, images, offloaded, timed
from helpers.predict.time.convolutions import ResNet
from helpers.predict.time.stacks import FSDP, MEGATRON_CORE
from helpers.predict.time.step import NOMINAL
from helpers.quantities.units import format_bytes
from helpers.specs import Cluster, ModelSpec, Plan
from helpers.specs.checks import check_one_of

DEFAULT_SEQUENCES = 512  # 4.2 million tokens of Llama 3's 8192, 0.5 million of GPT-2's 1024


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What `advise` found. `text`, the notebook's table, `page(path)` and `as_json()` say the same.

    best: up to ten plans, the first is the one to take; empty where none fits. candidates: each strategy with its best
    plan and why it is left out. simplest: of the plans that fit. rule, because: the rule of thumb for this case and the
    arithmetic by which it applies. instead: what to take rather than a first plan that fits only with warnings.
    remarks: what else should be known. searched: plans that were looked at.
    """

    work: Work
    best: tuple[Ranked, ...]
    candidates: tuple[Ranked, ...]
    simplest: Ranked | None
    searched: int
    rule: Rule | None = None
    because: str = ""
    instead: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def chosen(self) -> Ranked | None:
        return self.best[0] if self.best else None

    @property
    def strategy(self) -> str | None:
        """The name of the chosen strategy, None where nothing fits."""
        return self.chosen and self.chosen.name

    @property
    def plan(self) -> Plan | None:
        return self.chosen and self.chosen.plan

    def __getitem__(self, name: str) -> Ranked:
        """The best plan of this strategy, such as "ZeRO-3". KeyError, listing them all, for another."""
        found = {one.name: one for one in self.candidates}
        if name not in found:
            raise KeyError(f"no strategy {name!r} here; there are {', '.join(found)}")
        return found[name]

    @property
    def sentence(self) -> str:
        """The choice, its step, what stands against it, and the rule of thumb beside it."""
        if self.chosen is None:
            said = [say("no_choice", missing=self._missing())]
        else:
            one = self.chosen
            words = dict(name=one.title, plan=one.plan_words, step=one.step_words, share=100 * one.mfu)
            words["whole"] = isinstance(self.work.model, ModelSpec)
            open_ = [say("uncalibrated")] if self.work.constants == NOMINAL else []
            more = [self.instead] if self.instead else []
            said = [say("choice", **words), *more, *open_, *map(self._warned, one.warnings)]
        if self.rule:
            rule = say("by_rule", case=self.rule.case, says=self.rule.says, because=self.because)
            said.append(rule.rstrip())
        return say("between").join(said)

    def _warned(self, words: str) -> str:
        is_shared = words not in self.own_warnings(self.chosen)
        differ = any(words not in one.warnings for one in self.best)
        return say("warned_all" if is_shared else "warned", words=words, count=len(self.best), differ=differ)

    def own_warnings(self, one: Ranked) -> list[str]:
        """Those that not all of the best plans have, but for their numbers."""
        kinds = [{without_numbers(words) for words in one.warnings} for one in self.best]
        common = set.intersection(*kinds) if len(kinds) > 1 else set()
        return [words for words in one.warnings if without_numbers(words) not in common]

    def _missing(self) -> str:
        lightest = min((one.held.total for one in self.candidates if one.held), default=0)
        sizes = {"least": lightest, "usable": self.work.usable, "missing": lightest - self.work.usable}
        return say("missing", **{name: format_bytes(size) for name, size in sizes.items()}) if lightest else ""

    @property
    def text(self) -> str:
        """Choice, the ten best with their reasons, a line for each strategy, remarks."""
        return advice_page.text(self)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return advice_page.table(self)

    def page(self, path: str | Path) -> Path:
        """Write one self-contained HTML page to print on A4: model, cluster, arithmetic, tables and rule. Its path."""
        target = Path(path)
        target.write_text(advice_page.page(self), encoding="utf-8")
        return target

    def as_json(self) -> dict[str, Any]:
        """Plain values: plans as dicts, seconds, bytes, shares."""
        found = {"global_batch": self.work.global_batch, "searched": self.searched, "sentence": self.sentence}
        found |= {"remarks": list(self.remarks), "best": [plain(one) for one in self.best]}
        found["simplest"] = plain(self.simplest) if self.simplest else None
        return found | {"strategies": [plain(one) for one in self.candidates]}


def plain(one: Ranked) -> dict[str, Any]:
    """A plan as plain values."""
    bars = [asdict(bar) for bar in one.step.bars] if one.step else []
    return {
        "name": one.name, "plan": asdict(one.plan) if one.plan else None, "fits": one.fits, "seconds": one.seconds,
        "bars": bars, "mfu": one.mfu, "tokens_per_second": one.tokens_per_second,
        "held": asdict(one.held) if one.held else None, "host_bytes": one.host_bytes, "why": one.why,
        "reasons": list(one.reasons), "warnings": list(one.warnings),
    }  # fmt: skip


def advise(
    model: ModelSpec | ResNet, cluster: Cluster, *, global_batch: int | None = None, seq: int | None = None,
    lora: int | None = None, **options: Any,
) -> Advice:  # fmt: skip
    """The plan that trains `model` on all GPUs of `cluster`, the nine next, and why the others are left out.

    global_batch: sequences of `model.seq` tokens (images of a ResNet) a step, over all GPUs; default 512, or the next
    multiple of the GPUs. seq: tokens of a sequence, instead of the model's. lora: train adapters of this rank alone.
    options: precision, optimizer, attention as in Plan; stack, constants as in step_time. Raises ValueError for what is
    no model or cluster, or a batch that no plan can divide.
    """
    if lora is not None:  # trained by plain PyTorch: Qwen's table (see UNPACKING) lies nearer to its unfused passes
        options = {"stack": FSDP, **options}
    work = asked(model, cluster, global_batch, seq, options)
    if isinstance(model, ResNet):
        return _of(work, list(images(work)))
    if lora is not None:
        return _of(work, list(adapted(work, lora)))
    fit, searched = fitting(work)
    found = timed(work, fit) or list(offloaded(work))
    searched, found = max(searched, len(found)), warned(work, found)
    candidates = strategies(work, found)
    if not found and all(one.plan is None for one in candidates):
        raise ValueError(say("cannot.batch_of_all", batch=work.global_batch, gpus=cluster.world_size))
    advice = _ranked(work, found, candidates, searched)
    rule, because = rule_for(work, candidates, advice.chosen)
    return replace(
        advice,
        rule=rule,
        because=because,
        instead=instead(work, advice.chosen),
        remarks=remarks(work, advice.best, found, advice.simplest),
    )


def default_batch(cluster: Cluster) -> int:
    """512, or the next multiple of the GPUs."""
    return ceil(DEFAULT_SEQUENCES / cluster.world_size) * cluster.world_size


def asked(model, cluster, global_batch: int | None, seq: int | None, options: dict[str, Any]) -> Work:
    """What was asked, checked."""
    if not isinstance(model, (ModelSpec, ResNet)) or not isinstance(cluster, Cluster):
        raise ValueError(
            f"advise takes a ModelSpec and a Cluster, such as PRESETS['llama3-8b'] and CLUSTERS['8 H100'], but got "
            f"{model!r} and {cluster!r}"
        )
    if seq is not None:
        model = replace(model, seq=seq)
    if global_batch is None:
        global_batch = default_batch(cluster)
    if isinstance(global_batch, bool) or not isinstance(global_batch, int) or global_batch < 1:
        raise ValueError(f"advise: global_batch is {global_batch!r}, but it must be a whole number of at least 1")
    if options.get("precision") == "fp32":
        raise ValueError("advise: precision='fp32' has no rate in the model of time; choose 'mixed' or leave it out")
    for name in {"precision", "optimizer", "attention"} & {name for name, value in options.items() if value}:
        check_one_of("advise", name, options[name], Plan.KNOWN[name])
    if cluster.gpu.name.split()[0] in NO_BF16:  # nor FlashAttention-2: a memory-efficient kernel, half as fast
        stack = options.get("stack", MEGATRON_CORE)
        options = {**options, "stack": replace(stack, flash=0.5 * stack.flash)}
    return Work(model=model, cluster=cluster, global_batch=global_batch, **options)


def _of(work: Work, tried: list[Ranked]) -> Advice:
    """Of plans of one kind, those that fit, ranked; ValueError where none divides the batch."""
    if not tried:
        raise ValueError(say("cannot.batch_of_all", batch=work.global_batch, gpus=work.cluster.world_size))
    found = warned(work, [one for one in tried if one.fits])
    names = dict.fromkeys(one.name for one in tried)
    candidates = strategies(work, found, {name: [one for one in tried if one.name == name] for name in names})
    advice = _ranked(work, found, candidates, len(tried))
    return replace(advice, remarks=remarks(work, advice.best, found, advice.simplest))


def _ranked(work: Work, found: Sequence[Ranked], candidates: tuple[Ranked, ...], searched: int) -> Advice:
    best = best_of(work, found)
    said = tuple(replace(one, reasons=reasons(work, one, best[0], found), is_chosen=one is best[0]) for one in best)
    simplest = simplest_of(work, found) if found else None
    return Advice(work=work, best=said, candidates=candidates, simplest=simplest, searched=searched)
