"""Refuses plans that the Trainer cannot run with a model, and says for each why, and which nearest plan works.

A Plan says how many ranks work on each axis (dp, tp, pp, cp, ep), the ZeRO stage, the pipeline's schedule and so on.
The Trainer calls `check` before it changes the model. What depends on the plan alone is checked in specs/trainable.py,
which the planner uses as well.
"""

from __future__ import annotations

from torch import nn

from helpers.parallel.experts import ExpertsConfig, expert_layers
from helpers.specs import Plan
from helpers.specs.trainable import check_trainable, refuse_sequence_with_experts
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
    layers = expert_layers(model)
    if plan.ep > 1 and not layers:
        raise ValueError(
            f"ep={plan.ep} splits the experts of each layer, and this {type(model).__name__} has none: build it with "
            "with_experts(model, num_experts=..., top_k=...), or use ep=1"
        )
    for layer in layers:
        _check_experts(layer.config, plan)


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


def _check_experts(config: ExpertsConfig, plan: Plan) -> None:
    """Raise ValueError where the ranks cannot share these experts, or would not compute what one process does."""
    if config.num_experts % plan.ep:
        fits = max(size for size in range(1, plan.ep) if not config.num_experts % size and not plan.ep % size)
        raise ValueError(
            f"ep={plan.ep} does not divide the {config.num_experts} experts of a layer, of which all ranks get equally "
            f"many: use ep={fits}, or num_experts={-(-config.num_experts // plan.ep) * plan.ep}"
        )
    refuse_sequence_with_experts(plan)
    if config.capacity_factor is not None and plan.dp * plan.cp * plan.num_microbatches > 1:
        raise ValueError(
            f"capacity_factor={config.capacity_factor} drops tokens by what each expert gets from one micro-batch of "
            f"one rank, so dp={plan.dp}, cp={plan.cp} and num_microbatches={plan.num_microbatches} would drop others "
            "than one process: use capacity_factor=None, or only tp and pp with one micro-batch"
        )
