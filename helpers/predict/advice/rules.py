"""Chooses the published rule of thumb that applies to a model and a cluster, to show it beside the planner's choice.

A rule is known by its case, one of CASES below. Its texts are in words/advice.yaml, and `words(key, …)` returns one of
them in the reader's language.
The sources of the rules: for one node and for many nodes, the section "Scalability strategy" of the page "Parallelism
methods" in the Hugging Face Transformers documentation; for one GPU, Ren et al. 2021 (ZeRO-Offload).

    one GPU       fits: as it is                         does not fit: offload the optimizer
    one node      fits on a GPU: DDP                     does not: PP, ZeRO or TP; largest layer does not: TP or ZeRO
    many nodes    fits: DDP (a rule of this course)
                  fast network: ZeRO, or PP + TP + DP    slow network: DP + TP + PP with ZeRO-1

The rules leave some terms open, which this file fills in. "Fits": a micro-batch of one sequence, nothing recomputed,
takes at most 94 % of the memory (`PlanRequest.usable`). "Largest layer": the model states of a layer or of the token
table, as the first rank of a pipeline would have them. "Fast network": a rank's micro-batch has enough tokens for
ZeRO-3's traffic to hide behind its compute (`tokens_that_hide`). The planner does not follow the rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.learner.words import book
from helpers.predict.advice.fit import fullest_stage
from helpers.predict.advice.plans import PlanEstimate, PlanRequest, StrategyName
from helpers.predict.memory.states import bytes_per_parameter, params_per_layer, table_params, weight_bytes
from helpers.predict.time.collectives import tokens_that_hide
from helpers.quantities.units import format_bytes
from helpers.specs import ModelSpec, Plan

words = book("advice")
HIDDEN = 0.1  # where ranks wait for traffic in less than this share of the step, the traffic counts as hidden


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of thumb. name and cites are the keys of its texts under `rule` and `source` in words/advice.yaml."""

    name: str
    cites: str

    @property
    def case(self) -> str:
        """The case to which the rule applies, as text."""
        return words(f"rule.{self.name}.case")

    @property
    def says(self) -> str:
        """What the rule recommends, as text."""
        return words(f"rule.{self.name}.says")

    @property
    def source(self) -> str:
        """The publication of the rule, as text."""
        return words(f"source.{self.cites}")


# The sources that are not "table" (the documentation). "memory": no publication, because it follows from the memory.
CITED = {"one GPU, fits": "memory", "one GPU": "offload", "many nodes, fits": "memory"}
CASES = ("one GPU, fits", "one GPU", "one node, fits", "one node", "largest layer", "many nodes, fits", "fast", "slow")
RULES = {name: Rule(name=name, cites=CITED.get(name, "table")) for name in CASES}


def largest_layer(model: ModelSpec, plan: Plan) -> int:
    """Bytes of model states of the largest layer (or token table), the least that a pipeline stage can have."""
    return round(max(params_per_layer(model, plan), table_params(model, plan)) * bytes_per_parameter(plan))


def rule_for(
    request: PlanRequest, estimates: tuple[PlanEstimate, ...], chosen: PlanEstimate | None
) -> tuple[Rule, str]:
    """The rule that applies, and the arithmetic that says so, as text.

    estimates: one plan per strategy. chosen: the planner's choice, None where nothing fits. The arithmetic about
    ZeRO-3's traffic is left out (the text is then empty) unless the planner chose ZeRO-3 and its estimate agrees.
    """
    # All other fields keep their defaults: one rank, without ZeRO and recomputation, and micro-batches of one sequence.
    plain = Plan(precision=request.precision or "mixed", optimizer=request.optimizer, attention=request.attention)
    _, breakdown = fullest_stage(request.model, plain)  # the bytes of the fullest rank by kind
    needed, layer = breakdown.total, largest_layer(request.model, plain)
    usable, fits = format_bytes(request.usable), needed <= request.usable
    # What one GPU would need decides all cases but "largest layer", "fast" and "slow", so this text serves for each.
    because = words("because.one_gpu", size=format_bytes(needed), usable=usable)
    if request.cluster.num_nodes > 1:
        return (RULES["many nodes, fits"], because) if fits else _many_nodes(request, estimates, chosen)
    if request.cluster.world_size == 1:
        return RULES["one GPU, fits" if fits else "one GPU"], because
    if layer > request.usable:
        because = words("because.layer", size=format_bytes(layer), usable=usable)
        return RULES["largest layer"], because
    return RULES["one node, fits" if fits else "one node"], because


def _many_nodes(
    request: PlanRequest, estimates: tuple[PlanEstimate, ...], chosen: PlanEstimate | None
) -> tuple[Rule, str]:
    """The rule for several nodes and a model that does not fit on a GPU, by whether the network is fast."""
    sharded = next(candidate for candidate in estimates if candidate.name == StrategyName.ZERO_3)
    # Tokens of a rank's micro-batch under ZeRO-3; of a single sequence where ZeRO-3 does not fit and has no such plan.
    tokens = request.model.seq * (sharded.plan.micro_batch if sharded.fits else 1)
    enough = tokens_that_hide(request.cluster, dtype_bytes=weight_bytes(Plan(precision=request.precision or "mixed")))
    hides = tokens >= enough
    because = ""
    # `traffic` is the share of the estimated step in which ranks wait; the rule's arithmetic must agree with it.
    if chosen is not None and chosen.name == StrategyName.ZERO_3 and hides == (chosen.traffic < HIDDEN):
        because = words("because.tokens", tokens=tokens, enough=enough, hides=hides)
    return RULES["fast" if hides else "slow"], because
