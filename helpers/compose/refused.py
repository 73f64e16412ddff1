"""Refuses plans that the Trainer cannot run with a model, and says for each why, and which nearest plan works.

A Plan says how many ranks work on each axis (dp, tp, pp, cp), the ZeRO stage, the pipeline's schedule and so on. The
Trainer calls `check` before it changes the model. What depends on the plan alone is checked in specs/trainable.py,
which the planner uses as well.
"""

from __future__ import annotations

from torch import nn

from helpers.specs import Plan
from helpers.specs.trainable import check_trainable


def check(model: nn.Module, plan: Plan) -> None:
    """Raise ValueError for a plan that this course cannot compose, or cannot compose with this model."""
    check_trainable(plan, sum(parameter.nbytes for parameter in model.parameters()))
    if plan.recompute != "none" and not hasattr(model, "blocks"):
        raise ValueError(
            f"recompute={plan.recompute!r} recomputes the elements of `model.blocks`, and a {type(model).__name__} has "
            "none: use recompute='none', or name its layers blocks"
        )
