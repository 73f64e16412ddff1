"""Judges 14.groups: which ranks add up the gradient of a parameter of a model with experts, and what divides the sum.

The learner's function is called in one process for every kind of parameter and every rank of several meshes. A case is
the list of arguments of one call. Below the sentence about a wrong value, `…_rule` says how the right one comes about,
with the numbers of the case. `Words` is a text in English and Chinese. Nothing here needs torch, so a page of the web
edition judges the task.
"""

from __future__ import annotations

from typing import Any

from helpers.grading.experts import LAB
from helpers.grading.kit.answers import question_task
from helpers.grading.task import NumberGenerator
from helpers.learner.words import Words
from helpers.specs.mesh import Mesh

words = LAB.messages  # the texts of messages.yaml

KINDS = ("attention", "router", "shared expert", "expert")  # of parameters


def make_groups(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every kind and rank of the picture's mesh and of the text's, of meshes with one axis, with two and with three.

    A case is: the kind, the rank, and the sizes of ep, edp and tp.
    """
    sizes = [(2, 2, 2), (1, 1, 1), (rng.integer(2, 4), 1, 1), (1, rng.integer(2, 4), 1), (1, 1, rng.integer(2, 4))]
    sizes += [(2, 2, 1), (2, 3, 1), (4, 1, 2), (1, 3, 2), rng.one_of((2, 3, 4), (4, 3, 2), (3, 2, 4), (3, 4, 2))]
    return [{"cases": [[kind, rank, *one] for one in sizes for kind in KINDS for rank in range(num_ranks(*one))]}]


def num_ranks(ep: int, edp: int, tp: int) -> int:
    return ep * edp * tp


def gradient_group(kind: str, rank: int, ep: int, edp: int, tp: int) -> tuple[list[int], int]:
    """The right answer to a case: the ranks whose gradients are added up, and the number that divides the sum."""
    mesh = Mesh(dp=ep * edp, ep=ep, tp=tp)
    axes = ("edp",) if kind == "expert" else ("ep", "edp")
    return next(group for group in mesh.groups(*axes) if rank in group), ep * edp


def ranks_rule(case: list[Any], got: Any) -> Words:
    """Which coordinates the ranks of the group share, with those of this rank."""
    kind, rank, ep, edp, tp = case
    place = {"ep": rank // tp % ep, "edp": rank // (tp * ep), "tp": rank % tp}
    return words["ranks_rule.expert" if kind == "expert" else "ranks_rule.others"].format(rank=rank, **place)


def divisor_rule(case: list[Any], got: Any) -> Words:
    """How many ranks have different tokens, and of how many of them a gradient already has the sum."""
    kind, _, ep, edp, _ = case
    return words["divisor_rule.expert" if kind == "expert" else "divisor_rule.others"].format(ep=ep, edp=edp)


GROUPS = question_task(
    "14.groups",
    "gradient_group(kind, rank, ep, edp, tp)",
    [words["ranks"], words["divisor"]],
    gradient_group,
    make_inputs=make_groups,
    rules=[ranks_rule, divisor_rule],
    needs_torch=False,
)
