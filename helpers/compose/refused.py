"""Refuses plans that the Trainer cannot run with a model, and says for each why, and which nearest plan works.

A Plan says how many ranks work on each axis (dp, tp, pp, cp), the ZeRO stage, the pipeline's schedule and so on. The
Trainer calls `check` before it changes the model. What depends on the plan alone is checked in specs/trainable.py,
which the planner uses as well.
"""

from __future__ import annotations

from torch import nn

from helpers.specs import Plan
from helpers.specs.trainable import check_trainable
from helpers.workloads import GPT


def check(model: nn.Module, plan: Plan) -> None:
    """Raise ValueError for a plan that this course cannot compose, or cannot compose with this model."""
    check_trainable(plan, sum(parameter.nbytes for parameter in model.parameters()))
    if plan.recompute != "none" and not hasattr(model, "blocks"):
        raise ValueError(
            f"recompute={plan.recompute!r} recomputes the elements of `model.blocks`, and a {type(model).__name__} has "
            "none: use recompute='none', or name its layers blocks"
        )
    if plan.cp > 1:
        _check_context(model, plan)
        if plan.cp_method == "all_to_all":
            _check_heads_of_ulysses(model.config.num_heads, model.config.kv_heads, plan)


def _check_context(model: nn.Module, plan: Plan) -> None:
    """Raise ValueError where cp ranks cannot share the sequences of this model."""
    if not isinstance(model, GPT):
        raise ValueError(
            f"cp={plan.cp} splits the tokens of a GPT, whose attention then exchanges them, and a "
            f"{type(model).__name__} has none: use cp=1, with dp={plan.dp * plan.cp} for as many ranks"
        )
    if model.config.dropout:
        raise ValueError(
            f"cp={plan.cp} with dropout={model.config.dropout} is not implemented, because random masks would have to "
            f"be split over tokens: use dropout=0.0, or cp=1 and dp={plan.dp * plan.cp}"
        )


def _check_heads_of_ulysses(heads: int, kv_heads: int, plan: Plan) -> None:
    """Raise ValueError where cp ranks cannot share the heads that tp leaves to each of its ranks."""
    if heads % plan.tp:
        return  # shard_tensor_parallel says why this fails
    heads, kv_heads = heads // plan.tp, max(1, kv_heads // plan.tp)
    if heads % plan.cp or (kv_heads % plan.cp and plan.cp % kv_heads):
        raise ValueError(
            f"cp_method='all_to_all' gives each cp rank full heads, but tp={plan.tp} leaves {heads} query heads and "
            f"{kv_heads} of keys and values, which cp={plan.cp} ranks cannot share equally: use cp_method='ring', "
            "which has no such limit"
        )
