"""The rules of thumb that say which strategies to consider, and the arithmetic that says which rule applies.

The rules. Many nodes, and one node: Hugging Face Transformers documentation, "Parallelism methods", section
"Scalability strategy". One GPU: Ren et al. 2021 (ZeRO-Offload).

    one GPU       fits: as it is                         does not fit: offload the optimizer
    one node      fits on a GPU: DDP                     does not: PP, ZeRO or TP; largest layer does not: TP or ZeRO
    many nodes    fits: DDP (ours)
                  fast network: ZeRO, or PP + TP + DP    slow network: DP + TP + PP with ZeRO-1

Ours, where the rules leave it open. "Fits": a micro-batch of one sequence, nothing recomputed, within `USABLE_SHARE` of
the memory. "Layer": its model states, as the first rank of a pipeline would hold them. "Fast": a rank's micro-batch has
at least `tokens_that_hide` tokens. Where a rule names several, the shortest estimated step wins, and within 5 % the one
that changes a training script less.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.predict.fit import fullest
from helpers.predict.states import bytes_per_parameter, params_per_layer, table_params, weight_bytes
from helpers.predict.step_time import tokens_that_hide
from helpers.predict.strategies import Candidate, Name, Work
from helpers.specs import ModelSpec, Plan
from helpers.units import format_bytes

TABLE = 'Hugging Face Transformers documentation, "Parallelism methods", section "Scalability strategy"'
NO_CHOICE = "follows from the memory alone"
OFFLOADING = "Ren et al. 2021, ZeRO-Offload"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of thumb. tiers: names of strategies; the first tier of which one fits is the one that counts."""

    case: str
    says: str
    source: str
    tiers: tuple[tuple[str, ...], ...]


_SHARDED = (Name.ZERO_1, Name.ZERO_2, Name.ZERO_3)
_REST = (Name.DDP, *_SHARDED, Name.PP, Name.TP, Name.MIXED, Name.MIXED_ZERO_1)
RULES = {
    "one GPU, fits": Rule(
        case="One GPU, and the model fits", says="train it as it is, in mixed precision", source=NO_CHOICE,
        tiers=((Name.ONE_GPU,),),
    ),
    "one GPU": Rule(
        case="One GPU, and the model does not fit", says="recompute, else offload the optimizer to the host",
        source=OFFLOADING, tiers=((Name.ONE_GPU,), (Name.OFFLOAD,)),
    ),
    "one node, fits": Rule(
        case="One node, and the model fits on a GPU", says="DDP with mixed precision", source=TABLE,
        tiers=((Name.DDP,), _REST),
    ),
    "one node": Rule(
        case="One node, and the model does not fit on a GPU", says="ZeRO, PP or TP", source=TABLE,
        tiers=((*_SHARDED, Name.PP, Name.TP), _REST, (Name.OFFLOAD,)),
    ),
    "largest layer": Rule(
        case="One node, and the largest layer does not fit on a GPU", says="TP or ZeRO, for PP cannot cut a layer",
        source=TABLE, tiers=((*_SHARDED, Name.TP), _REST, (Name.OFFLOAD,)),
    ),
    "many nodes, fits": Rule(
        case="Many nodes, and the model fits on a GPU", says="DDP, for nothing needs to be split", source=NO_CHOICE,
        tiers=((Name.DDP,), _REST),
    ),
    "fast": Rule(
        case="Many nodes, and a fast network", says="ZeRO, or PP + TP + DP", source=TABLE,
        tiers=(_REST, (Name.OFFLOAD,)),
    ),
    "slow": Rule(
        case="Many nodes, and a slow network", says="DP + TP + PP with ZeRO-1", source=TABLE,
        tiers=((Name.MIXED_ZERO_1,), _REST, (Name.OFFLOAD,)),
    ),
}  # fmt: skip


def largest_layer(model: ModelSpec, plan: Plan) -> int:
    """Bytes of model states of the largest layer (or token table), the least that a stage of a pipeline can hold."""
    return round(max(params_per_layer(model, plan), table_params(model, plan)) * bytes_per_parameter(plan))


def rule_for(work: Work, found: tuple[Candidate, ...]) -> tuple[Rule, str]:
    """Which rule applies, and the arithmetic that says so."""
    plain = Plan(precision=work.precision, optimizer=work.optimizer, attention=work.attention)
    held, layer = fullest(work.model, plain)[1].total, largest_layer(work.model, plain)
    usable, fits = f"{format_bytes(work.usable)} usable", held <= work.usable
    because = f"One sequence at a time needs {format_bytes(held)} on one GPU, {usable}."
    if work.cluster.num_nodes > 1:
        return (RULES["many nodes, fits"], because) if fits else _many_nodes(work, found)
    if work.cluster.world_size == 1:
        return RULES["one GPU, fits" if fits else "one GPU"], because
    if layer > work.usable:
        because = f"The model states of the largest layer alone take {format_bytes(layer)}, {usable}."
        return RULES["largest layer"], because
    return RULES["one node, fits" if fits else "one node"], because


def _many_nodes(work: Work, found: tuple[Candidate, ...]) -> tuple[Rule, str]:
    sharded = next(one for one in found if one.name == Name.ZERO_3)
    tokens = work.model.seq * (sharded.plan.micro_batch if sharded.fits else 1)
    enough = tokens_that_hide(work.cluster, work.assumptions, dtype_bytes=weight_bytes(Plan(precision=work.precision)))
    word, rule = ("hides", RULES["fast"]) if tokens >= enough else ("does not hide", RULES["slow"])
    because = f"A micro-batch has {tokens:,} tokens a rank; from {enough:,.0f} on ZeRO-3's traffic hides behind compute"
    return rule, f"{because}, so it {word}."
