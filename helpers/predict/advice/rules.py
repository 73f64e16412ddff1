"""The rules of thumb that say which strategies to consider, and the arithmetic that says which rule applies.

The rules. Many nodes, and one node: Hugging Face Transformers documentation, "Parallelism methods", section
"Scalability strategy". One GPU: Ren et al. 2021 (ZeRO-Offload).

    one GPU       fits: as it is                         does not fit: offload the optimizer
    one node      fits on a GPU: DDP                     does not: PP, ZeRO or TP; largest layer does not: TP or ZeRO
    many nodes    fits: DDP (ours)
                  fast network: ZeRO, or PP + TP + DP    slow network: DP + TP + PP with ZeRO-1

Ours, where the rules leave it open. "Fits": a micro-batch of one sequence, nothing recomputed, within `USABLE_SHARE` of
the memory. "Layer": its model states, as the first rank of a pipeline would hold them. "Fast": a rank's micro-batch has
at least `tokens_that_hide` tokens. The planner does not obey them: it is said beside its choice what they would say.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.learner.words import book
from helpers.predict.advice.fit import fullest
from helpers.predict.advice.plans import Name, Ranked, Work
from helpers.predict.memory.states import bytes_per_parameter, params_per_layer, table_params, weight_bytes
from helpers.predict.time.collectives import tokens_that_hide
from helpers.quantities.units import format_bytes
from helpers.specs import ModelSpec, Plan

say = book("advice")
HIDDEN = 0.1  # of the step: less exposed traffic than this is hidden


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of thumb. name, cites: what its words are called under `rule` and `source` of words/advice.yaml."""

    name: str
    cites: str

    @property
    def case(self) -> str:
        return say(f"rule.{self.name}.case")

    @property
    def says(self) -> str:
        return say(f"rule.{self.name}.says")

    @property
    def source(self) -> str:
        return say(f"source.{self.cites}")


CITED = {"one GPU, fits": "memory", "one GPU": "offload", "many nodes, fits": "memory"}
CASES = ("one GPU, fits", "one GPU", "one node, fits", "one node", "largest layer", "many nodes, fits", "fast", "slow")
RULES = {name: Rule(name=name, cites=CITED.get(name, "table")) for name in CASES}


def largest_layer(model: ModelSpec, plan: Plan) -> int:
    """Bytes of model states of the largest layer (or token table), the least that a stage of a pipeline can hold."""
    return round(max(params_per_layer(model, plan), table_params(model, plan)) * bytes_per_parameter(plan))


def rule_for(work: Work, found: tuple[Ranked, ...], chosen: Ranked | None) -> tuple[Rule, str]:
    """Which rule applies, and the arithmetic that says so; of ZeRO-3's traffic only where the choice bears it out."""
    plain = Plan(precision=work.precision or "mixed", optimizer=work.optimizer, attention=work.attention)
    held, layer = fullest(work.model, plain)[1].total, largest_layer(work.model, plain)
    usable, fits = format_bytes(work.usable), held <= work.usable
    because = say("because.one_gpu", size=format_bytes(held), usable=usable)
    if work.cluster.num_nodes > 1:
        return (RULES["many nodes, fits"], because) if fits else _many_nodes(work, found, chosen)
    if work.cluster.world_size == 1:
        return RULES["one GPU, fits" if fits else "one GPU"], because
    if layer > work.usable:
        because = say("because.layer", size=format_bytes(layer), usable=usable)
        return RULES["largest layer"], because
    return RULES["one node, fits" if fits else "one node"], because


def _many_nodes(work: Work, found: tuple[Ranked, ...], chosen: Ranked | None) -> tuple[Rule, str]:
    sharded = next(one for one in found if one.name == Name.ZERO_3)
    tokens = work.model.seq * (sharded.plan.micro_batch if sharded.fits else 1)
    enough = tokens_that_hide(work.cluster, dtype_bytes=weight_bytes(Plan(precision=work.precision or "mixed")))
    hides = tokens >= enough
    is_borne_out = chosen is not None and chosen.name == Name.ZERO_3 and hides == (chosen.traffic < HIDDEN)
    because = say("because.tokens", tokens=tokens, enough=enough, hides=hides) if is_borne_out else ""
    return RULES["fast" if hides else "slow"], because
