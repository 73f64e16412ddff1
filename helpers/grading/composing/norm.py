"""Judges 09.norm: one norm over the gradients of all ranks of a mesh, in which each entry counts once.

The task has at least six cases, which are enough for every mesh that the number of ranks allows. ENDS is the axis
"ends", whose groups join the first and the last stage of a pipeline, which share a tied weight. From meshes.py:
`mesh_of_case` draws the mesh of a case, `group_inputs` stores it in a rank's inputs, and `mesh_in` and `process_groups`
read it back, the latter as groups of torch.distributed.

How to read it. `make_norm` draws the inputs of every rank for one case, `run_norm` calls the learner's answer,
`submitted`, on one rank, and `judge_norm` runs in another process: it compares what the ranks returned with the right
values, and yields one Judgement per comparison. `words[…]` is a text of messages.yaml, in English and Chinese.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import (
    ENDS,
    group_inputs,
    is_end,
    mesh_in,
    mesh_of_case,
    mesh_text,
    process_groups,
    sizes_of,
)
from helpers.grading.kit.comparisons import expect, expect_number, with_rule
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task

words = LAB.messages

# The parameters of a stage, and whether each is sharded over tp or has replicas there. "norm" is the weight of a
# normalization layer, and "tied" is on the first and the last stage.
TP_SHARDING = {"matrix": "sharded", "norm": "replicated", "bias": "replicated", "tied": "sharded"}
MAX_BYTES = 8 * 4  # sent per norm: the 8 bytes of a float64 for each of dp, pp and tp, and 8 more to spare


def make_norm(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """Gradients of each rank, and how they are placed. In every other case ZeRO has sharded all of them over dp.

    The first and last stage have all parameters; a stage between them has two, or none if there are three stages, so
    that an answer must also work on a rank without any gradient.
    """
    mesh = mesh_of_case(rng, world_size)
    dp = "sharded" if rng.case.number % 2 else "replicated"
    powers = [2.0, math.inf, rng.one_of(1.0, 3.0)]  # p of each norm that is asked for
    drawn: dict[tuple, Tensor] = {}  # replicas have one key, and so the same tensor
    inputs = []
    for rank in range(world_size):
        position = mesh.coordinates(rank)
        of_rank: dict[str, Any] = group_inputs(mesh, rank) | {"powers": powers, "gradients": [], "placements": []}
        has_tied_weight = is_end(mesh, position["pp"])
        names = list(TP_SHARDING)
        if not (has_tied_weight or mesh.pp == 1):  # a stage between the first and the last
            names = names[:2] if mesh.pp > 3 else []
        for name in names:
            placement = {"dp": dp, "tp": TP_SHARDING[name]}
            placement |= {ENDS: "replicated"} if has_tied_weight and name == "tied" else {}
            # Ranks with equal keys get the same gradient. It differs from stage to stage unless the weight is tied.
            key = [name, *(position[axis] for axis in ("dp", "tp") if placement[axis] == "sharded")]
            key += [] if ENDS in placement else [position["pp"]]
            of_rank["gradients"].append(drawn.setdefault(tuple(key), rng.tensor(rng.integer(2, 5))))
            of_rank["placements"].append(placement)
        inputs.append(of_rank)
    return inputs


def run_norm(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[float]:
    """The norms that the learner's function returns on this rank, one for each of the powers."""
    groups = process_groups(inputs)
    gradients, placements = inputs["gradients"], inputs["placements"]
    return [float(submitted(list(gradients), list(placements), groups, p)) for p in inputs["powers"]]


def right_norm(world: JudgedWorld, p: float) -> float:
    """The norm of all entries with power p. Replicas of a gradient are one tensor in the inputs, which counts once."""
    gradients = {id(gradient): gradient for inputs in world.inputs for gradient in inputs["gradients"]}
    entries = torch.cat([gradient.flatten() for gradient in gradients.values()])
    return float(torch.linalg.vector_norm(entries, p))


def judge_norm(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns the norm of all entries, each counted once, and sends few numbers for it."""
    mesh, powers = mesh_in(world.inputs[0]), world.inputs[0]["powers"]
    right = [right_norm(world, p) for p in powers]
    dp = next(one["dp"] for inputs in world.inputs for one in inputs["placements"])  # the same for all gradients
    for rank, got in enumerate(world.outputs):
        for p, expected, value in zip(powers, right, got, strict=True):
            what = words["norm_of_all"].format("inf" if p == math.inf else int(p), mesh_text(sizes_of(mesh)))
            rule = words["largest_entry"].format(world.size) if p == math.inf else words["entries_once"]
            judgement = expect_number(what, expected, value, rank=rank)
            yield from with_rule(rule.format(words[f"zero_{dp}"]), [judgement])
        num_bytes = world.logs[rank].payload_bytes()
        message = words["numbers_per_norm"].format(num_bytes, len(powers), MAX_BYTES)
        yield expect(num_bytes <= MAX_BYTES * len(powers), message, rank=rank)


def recognise_norm(failure: RunFailure) -> list[str]:
    """The hints that fit the error with which a run ended."""
    if failure.kind in ("hang", "mismatch"):
        return ["not_all_take_part"]
    is_empty = re.search(r"non-empty|an empty|is empty|numel\(\) == 0", failure.text)
    return ["rank_without_gradients"] if failure.kind == "exception" and is_empty else []


NORM = Task(
    key="09.norm",
    signature="gradient_norm(gradients, placements, groups, p)",
    make_inputs=make_norm,
    variations=Variations(min_cases=6),
    run_submission=run_norm,
    judge=judge_norm,
    must_not_change=("gradients", "placements", "groups"),
    recognise_failure=recognise_norm,
)
