"""Criticises a training plan that the reader wrote: does it fit, what limits it, what does it lose to the planner's?

`read_plan` reads a plan as people type it, "dp=4 tp=8 zero=1". `criticise` compares it with the planner's choice.
The command `plan --mine`, the strategy explorer and the design rounds use both. A `PlanRequest` holds the checked
arguments (model, cluster, batch), and a `PlanEstimate` is a plan with its memory and its step. `words("mine.best", …)`
returns the text of that key in the reader's language, from words/advice.yaml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from helpers.learner.words import book
from helpers.predict.advice.advise import advise, estimate_as_json, plan_request
from helpers.predict.advice.fit import USABLE_SHARE, fit, fullest_stage
from helpers.predict.advice.plans import PlanEstimate, PlanRequest, bottleneck_sentence, describe_plan, words
from helpers.predict.advice.ranking import difference, warnings
from helpers.predict.advice.search import MOST_SUMS, estimate, schedule_of
from helpers.predict.time.step import StepTime, step_time
from helpers.quantities.units import format_bytes, format_seconds
from helpers.specs import Cluster, ModelSpec, Plan

typed_words = book("advice").section("typed")  # the messages about a typed plan; the language can be passed
AXES = ("dp", "tp", "pp", "cp")
SIZES = ("zero", "shard_ranks", "fp8", "micro_batch", "num_microbatches", "num_chunks", "last_stage_layers")
TEXT_FIELDS = ("recompute", "precision", "cp_method")  # whose values are no numbers
PARTS = (*AXES, "ep", *SIZES, *TEXT_FIELDS)  # the fields of a Plan that can be typed


def read_plan(given: str, model: ModelSpec, cluster: Cluster, batch: int, language: str | None = None) -> Plan:
    """Read a plan such as "dp=4, tp=8 zero=1". Raises ValueError for text that is no plan for this cluster and batch.

    batch: sequences of a step over all ranks. language: of the messages; None: the reader's.
    Defaults: dp takes the GPUs that are left where another axis is named; the other axes and the micro-batch are 1; no
    ZeRO and no recomputation; sequence parallelism where tp is above 1; as many micro-batches as the batch needs; and
    with many micro-batches, gradients are added up in fp32 if they fit.
    """
    fields = _typed_fields(given, language)
    if "dp" not in fields:
        others = fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)
        fields["dp"] = max(1, cluster.world_size // max(1, others))
    plan = Plan(**{"sequence_parallel": fields.get("tp", 1) > 1, **fields})
    plan.check(model)
    if plan.world_size != cluster.world_size:
        raise ValueError(typed_words("world", language, given=plan.world_size, gpus=cluster.world_size))
    if "num_microbatches" not in fields:
        each = max(1, batch // (plan.dp * plan.micro_batch))
        plan = Plan(**{"sequence_parallel": plan.sequence_parallel, **fields, "num_microbatches": each})
    if plan.global_batch != batch:
        raise ValueError(typed_words("batch", language, batch=batch, given=plan.global_batch))
    # More than MOST_SUMS micro-batches should not be added up in 16 bits, so take fp32 sums if nothing else was asked.
    fp32_sums = replace(plan, precision="mixed_fp32_grads")
    is_open = "precision" not in fields and plan.num_microbatches > MOST_SUMS
    _, breakdown = fullest_stage(model, fp32_sums)
    return fp32_sums if is_open and breakdown.total <= USABLE_SHARE * cluster.gpu.memory else plan


def _typed_fields(given: str, language: str | None) -> dict[str, Any]:
    """The fields of a Plan that a text such as "dp=4, tp=8 zero=1" sets. ValueError for a text that says anything else.

    A Chinese keyboard may give the full-width =, comma or colon.
    """
    fields: dict[str, Any] = {}
    for part in filter(None, re.split(r"[\s,，、;；]+", re.sub(r"\s*[=＝:：]\s*", "=", given.lower()))):
        name, _, value = part.partition("=")
        if not name or not value:
            raise ValueError(typed_words("no_value", language, part=part))
        if name not in PARTS:
            raise ValueError(typed_words("unknown_part", language, name=name, known=PARTS))
        if name in fields:
            raise ValueError(typed_words("twice", language, name=name, first=fields[name], second=value))
        if name not in TEXT_FIELDS and not re.fullmatch("[0-9]{1,9}", value):
            raise ValueError(typed_words("bad_part", language, name=name, value=value))
        fields[name] = value if name in TEXT_FIELDS else int(value)
    if not fields.keys() & {*AXES}:
        raise ValueError(typed_words("no_parts", language))
    if "fp8" in fields:
        if fields["fp8"] > 1:
            raise ValueError(typed_words("bad_switch", language, name="fp8", value=fields["fp8"]))
        fields["fp8"] = fields["fp8"] == 1  # typed as fp8=1, but a bool in Plan
    return fields | {"schedule": schedule_of(fields.get("num_chunks", 1))}


# A plan of up to this many times the usable memory fits nearly, because the estimate counts all activations, while a
# training framework may free some of them early.
NEARLY = 1.1


@dataclass(frozen=True, kw_only=True)
class Criticism:
    """The result of `criticise`.

    estimate: the reader's plan with its step, whether it fits or not. best: the planner's, None where nothing fits.
    lost_share: how much longer the reader's plan takes (0.25: a quarter longer), None where one of the two does not
    fit. sentences: the criticism, the most important first.
    """

    estimate: PlanEstimate
    fits: bool
    best: PlanEstimate | None
    sentences: tuple[str, ...]

    @property
    def step(self) -> StepTime:
        """The estimated step of the reader's plan."""
        return self.estimate.step

    @property
    def lost_share(self) -> float | None:
        """How much longer the step is than the planner's, as a share of the planner's."""
        return self.estimate.seconds / self.best.seconds - 1 if self.fits and self.best else None

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values for JSON."""
        values = {"fits": self.fits, "lost": self.lost_share, "sentences": list(self.sentences)}
        best = estimate_as_json(self.best) if self.best else None
        return values | {"mine": estimate_as_json(self.estimate), "best": best}

    def __repr__(self) -> str:
        return "\n".join(self.sentences)


def criticise(
    model: ModelSpec, cluster: Cluster, plan: Plan, *, global_batch: int | None = None, seq: int | None = None,
    **options: Any,
) -> Criticism:  # fmt: skip
    """Compare `plan` with the planner's plan for the same batch (by default the plan's own).

    options: as in `advise`. Raises ValueError for a plan that does not suit the model, the cluster or the batch.
    """
    batch = plan.global_batch if global_batch is None else global_batch
    request = plan_request(model, cluster, batch, seq, options)
    if plan.global_batch != batch:
        raise ValueError(words("mine.batch", given=plan.global_batch, batch=batch))
    # Raises ValueError for a plan that does not suit the model or the cluster.
    step = step_time(request.model, plan, cluster, request.stack, request.constants)
    stage, breakdown = fullest_stage(request.model, plan)  # the stage that needs most memory, and its bytes by kind
    evaluated = estimate(request, plan, stage, breakdown, step)
    evaluated = replace(evaluated, warnings=warnings(request, evaluated))
    best = _advised(request)
    fits = breakdown.total <= request.usable
    sentences = tuple(_sentences(request, evaluated, best, fits))
    return Criticism(estimate=evaluated, fits=fits, best=best, sentences=sentences)


@lru_cache(maxsize=64)
def _advised(request: PlanRequest) -> PlanEstimate | None:
    """The planner's own choice, None where nothing fits."""
    options = {name: getattr(request, name) for name in ("precision", "optimizer", "attention", "stack", "constants")}
    return advise(request.model, request.cluster, global_batch=request.global_batch, **options).chosen


def _sentences(request: PlanRequest, evaluated: PlanEstimate, best: PlanEstimate | None, fits: bool):
    """The criticism: the plan, its memory, its step with bottleneck and warnings, and the planner's own choice."""
    yield words("mine.plan", plan=describe_plan(evaluated.plan))
    yield fit(request.model, evaluated.plan, request.cluster.gpu, gpus_per_node=request.cluster.gpus_per_node).text
    if request.usable < evaluated.memory.total <= NEARLY * request.usable:
        # The bytes that the device itself reports, which are more than the data sheet's.
        reported = request.cluster.gpu.reported or request.cluster.gpu.memory
        yield words(
            "mine.nearly", share=100 * (evaluated.memory.total / request.usable - 1), reported=format_bytes(reported)
        )
    yield words("mine.step", fits=fits, step=evaluated.step_text, mfu=100 * evaluated.mfu)
    yield bottleneck_sentence(request, evaluated)
    yield from (words("warned", words=warning) for warning in evaluated.warnings.values())
    refusal = evaluated.trainer_refusal(request.model)
    if fits or refusal:
        yield words("trainer.refuses", why=refusal) if refusal else words("trainer.runs")
    if best is None:
        yield words("mine.none")
    elif best.plan == evaluated.plan:
        yield words("mine.same")
    else:
        values = dict(plan=best.plan_text, step=format_seconds(best.seconds))
        yield words("mine.best", **values)
        if fits:
            yield difference(request, evaluated, best)
