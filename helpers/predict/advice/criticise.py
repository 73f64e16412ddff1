"""Criticises a training plan that the reader wrote: does it fit, what limits it, and what does it lose to the planner's?

`read_plan` reads a plan as people type it, "dp=4 tp=8 zero=1". `criticise` compares it with the planner's choice.
The command `plan --mine`, the strategy explorer and the design rounds use both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from helpers.learner.words import book
from helpers.predict.advice.advise import advise, asked, plain
from helpers.predict.advice.fit import USABLE_SHARE, fit, fullest
from helpers.predict.advice.plans import Ranked, Work, plan_words, say
from helpers.predict.advice.ranking import binding_words, difference, warnings
from helpers.predict.advice.search import MOST_SUMS, ranked
from helpers.predict.time.step import StepTime, step_time
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import Cluster, ModelSpec, Plan

typed_words = book("advice").section("typed")
WORDS = ("recompute", "precision")  # whose values are no numbers
SIZES = ("zero", "shard_ranks", "fp8", "micro_batch", "num_microbatches", "num_chunks")
PARTS = ("dp", "tp", "pp", "cp", "ep", *SIZES, *WORDS)
AXES = ("dp", "tp", "pp", "cp")


def read_plan(given: str, model: ModelSpec, cluster: Cluster, batch: int, language: str | None = None) -> Plan:
    """ "dp=4, tp=8 zero=1" as a Plan. Raises ValueError, a clause, for what is none here.

    What is left out: dp takes the GPUs that are left where another axis is named, all else is 1, no recomputation,
    sequence parallelism where tp is above 1, as many micro-batches as the step has, and many of them in fp32 sums if
    these fit.
    """
    parts = dict(re.findall(r"(\w+)\s*[=＝:：]\s*(\w+)", given.lower()))
    if unknown := [name for name in parts if name not in PARTS]:
        raise ValueError(typed_words("unknown_part", language, name=unknown[0], known=PARTS))
    if not parts.keys() & {*AXES}:
        raise ValueError(typed_words("no_parts", language))
    for name, text in parts.items():
        if name not in WORDS and not text.isdecimal():
            raise ValueError(typed_words("bad_part", language, name=name, value=text))
    fields = {name: text if name in WORDS else int(text) for name, text in parts.items()}
    if "fp8" in fields:
        fields["fp8"] = fields["fp8"] == 1
    if "dp" not in fields:
        taken = fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)
        fields["dp"] = max(1, cluster.world_size // max(1, taken))
    plan = Plan(**{"sequence_parallel": fields.get("tp", 1) > 1, **fields})
    plan.check(model)
    if plan.world_size != cluster.world_size:
        raise ValueError(typed_words("world", language, given=plan.world_size, gpus=cluster.world_size))
    if "num_microbatches" not in fields:
        each = max(1, batch // (plan.dp * plan.micro_batch))
        plan = Plan(**{"sequence_parallel": plan.sequence_parallel, **fields, "num_microbatches": each})
    if plan.global_batch != batch:
        raise ValueError(typed_words("batch", language, batch=batch, given=plan.global_batch))
    wide = replace(plan, precision="mixed_fp32_grads")
    is_open = "precision" not in fields and plan.num_microbatches > MOST_SUMS
    return wide if is_open and fullest(model, wide)[1].total <= USABLE_SHARE * cluster.gpu.memory else plan


NEARLY = 1.1  # of what is usable: activations are counted all, and a stack may free some early


@dataclass(frozen=True, kw_only=True)
class Criticism:
    """mine: the plan with its step, whether it fits or not. best: the planner's, None where nothing fits.

    lost: the share of time that it takes longer than the planner's (0.25: a quarter), None where one of them does not
    fit. sentences: everything that there is to say, the most important first.
    """

    mine: Ranked
    fits: bool
    best: Ranked | None
    sentences: tuple[str, ...]

    @property
    def step(self) -> StepTime:
        return self.mine.step

    @property
    def lost(self) -> float | None:
        return self.mine.seconds / self.best.seconds - 1 if self.fits and self.best else None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        told = {"fits": self.fits, "lost": self.lost, "sentences": list(self.sentences)}
        return told | {"mine": plain(self.mine), "best": plain(self.best) if self.best else None}

    def __repr__(self) -> str:
        return "\n".join(self.sentences)


def criticise(
    model: ModelSpec, cluster: Cluster, plan: Plan, *, global_batch: int | None = None, seq: int | None = None,
    **options: Any,
) -> Criticism:  # fmt: skip
    """What to say of `plan` beside the planner's, with the same batch (by default the plan's own).

    ValueError, a sentence, for a plan that does not suit the model, the cluster or the batch. options: as `advise`.
    """
    batch = plan.global_batch if global_batch is None else global_batch
    work = asked(model, cluster, batch, seq, options)
    if plan.global_batch != batch:
        raise ValueError(say("mine.batch", given=plan.global_batch, batch=batch))
    step = step_time(work.model, plan, cluster, work.stack, work.constants)  # refuses what does not suit
    stage, held = fullest(work.model, plan)
    mine = ranked(work, plan, stage, held, step)
    mine = replace(mine, warnings=tuple(warnings(work, mine)))
    found = _advised(work)
    fits = held.total <= work.usable
    return Criticism(mine=mine, fits=fits, best=found, sentences=tuple(_sentences(work, mine, found, fits)))


@lru_cache(maxsize=64)
def _advised(work: Work) -> Ranked | None:
    options = {name: getattr(work, name) for name in ("precision", "optimizer", "attention", "stack", "constants")}
    return advise(work.model, work.cluster, global_batch=work.global_batch, **options).chosen


def _sentences(work: Work, mine: Ranked, best: Ranked | None, fits: bool):
    yield say("mine.plan", plan=plan_words(mine.plan))
    yield fit(work.model, mine.plan, work.cluster.gpu, gpus_per_node=work.cluster.gpus_per_node).words
    if work.usable < mine.held.total <= NEARLY * work.usable:
        reported = work.cluster.gpu.reported or work.cluster.gpu.memory
        yield say("mine.nearly", share=100 * (mine.held.total / work.usable - 1), reported=format_bytes(reported))
    yield say("mine.step", fits=fits, step=mine.step_words, mfu=100 * mine.mfu)
    yield binding_words(work, mine)
    yield from (say("warned", words=words) for words in mine.warnings)
    if best is None:
        yield say("mine.none")
    elif best.plan == mine.plan:
        yield say("mine.same")
    else:
        words = dict(plan=best.plan_words, step=format_seconds(best.seconds))
        yield say("mine.best", **words)
        if fits:
            yield difference(work, mine, best)
