"""Judges 09.norm: one norm over the gradients of all ranks of a mesh, in which each entry counts once.

The task has at least six cases, which are enough for every mesh that the number of ranks allows. ENDS is the axis
"ends", whose groups join the first and the last stage of a pipeline, which share a tied weight. From meshes.py:
`mesh_of_case` draws the mesh of a case, `group_inputs` stores it in a rank's inputs, and `mesh_in` and `process_groups`
read it back, the latter as groups of torch.distributed.

How to read it. `make_norm` draws the inputs of every rank for one case, `run_norm` calls the learner's answer,
`submitted`, on one rank, and `judge_norm` runs in another process: it compares what the ranks returned with the right
values, and yields one Judgement per comparison. A mistake is a wrong solution that learners often write, and its name
is the key of its hint in hints.yaml. It is named if one way of making it gives the norms of all ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import (
    ENDS,
    explained,
    group_inputs,
    is_end,
    mesh_in,
    mesh_of_case,
    mesh_text,
    process_groups,
    sizes_of,
)
from helpers.grading.kit.comparisons import expect, expect_number
from helpers.grading.task import JudgedWorld, Judgement, RankContext, RunFailure, Task
from helpers.specs.mesh import Mesh

words = LAB.messages

# The parameters of a stage, and whether each is sharded over tp or has replicas there. "norm" is the weight of a
# normalization layer, and "tied" is on the first and the last stage.
TP_SHARDING = {"matrix": "sharded", "norm": "replicated", "bias": "replicated", "tied": "sharded"}
MAX_BYTES = 8 * 4  # sent per norm: the 8 bytes of a float64 for each of dp, pp and tp, and 8 more to spare
REPLICA_AXES = ("dp", "tp", ENDS)  # on which a gradient may have replicas


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


class GradientsOfRanks:
    """The gradients of some ranks, each with its number of replicas, from which their norm is computed.

    The sum over |g|^p of a gradient is divided by its number of replicas, so that all replicas count as one.
    replica_axes: the axes on which replicas are recognised as such. Leaving one out is a mistake, since each replica on
    it then counts. kinds: the placements that are taken for replicas; "sharded" as well is a mistake.
    """

    def __init__(
        self,
        world: JudgedWorld,
        mesh: Mesh,
        ranks: Iterable[int],
        replica_axes: Sequence[str] = REPLICA_AXES,
        kinds: Sequence[str] = ("replicated",),
    ):
        sizes = {"dp": mesh.dp, "tp": mesh.tp, ENDS: 2}  # replicas on each axis
        self.by_rank: list[list[tuple[Tensor, int]]] = []
        for inputs in (world.inputs[rank] for rank in ranks):
            with_replicas = []
            for gradient, placement in zip(inputs["gradients"], inputs["placements"], strict=True):
                axes = [axis for axis in replica_axes if placement.get(axis) in kinds]
                with_replicas.append((gradient, math.prod(sizes[axis] for axis in axes)))
            self.by_rank.append(with_replicas)

    def norm(self, p: float, power: float | None = None, *, divided: bool = False) -> float:
        """The norm with power p. Two mistakes: power, with which the norms of the ranks are combined; divided, if a
        gradient and not its sum is divided by the number of replicas."""
        power, by_rank = p if power is None else power, self.by_rank
        if divided:
            by_rank = [[(gradient / replicas, 1) for gradient, replicas in gradients] for gradients in by_rank]
        norms = [self._norm_of_rank(gradients, p) for gradients in by_rank]
        return max(norms, default=0.0) if power == math.inf else sum(one**power for one in norms) ** (1 / power)

    def _norm_of_rank(self, gradients: list[tuple[Tensor, int]], p: float) -> float:
        """The norm of one rank's gradients; infinite power means the largest absolute value."""
        if p == math.inf:
            return max((float(g.abs().max()) for g, _ in gradients), default=0.0)
        return sum(float((g.abs() ** p).sum()) / replicas for g, replicas in gradients) ** (1 / p)


def wrong_norms(world: JudgedWorld, mesh: Mesh, rank: int, powers: Sequence[float]) -> dict[str, list[list[float]]]:
    """For each mistake the norms that it gives on this rank, one list for each variant of the mistake."""
    ranks = range(world.size)
    gradients = GradientsOfRanks(world, mesh, ranks)
    # Replicas are recognised on none of the axes, or on all but tp, but dp, or but ENDS.
    overlooked = [GradientsOfRanks(world, mesh, ranks, axes) for axes in ((), ("dp", ENDS), ("tp", ENDS), ("dp", "tp"))]
    positions = [mesh.coordinates(other) for other in ranks]
    # The ranks of this rank's replica (one dp coordinate), and those of its stage (one pp coordinate).
    replica, stage = ([r for r in ranks if positions[r][axis] == positions[rank][axis]] for axis in ("dp", "pp"))
    # Only the stage's gradients count. The tied weight counts fully, or by half since the pipeline has two replicas.
    of_stage = [GradientsOfRanks(world, mesh, stage, axes) for axes in (("dp", "tp"), REPLICA_AXES)]
    right, infinite = [gradients.norm(p) for p in powers], [p == math.inf for p in powers]
    divided = [gradients.norm(p, divided=True) for p in powers]
    return {
        "norm_of_own": [
            [GradientsOfRanks(world, mesh, [rank], axes).norm(p) for p in powers] for axes in ((), REPLICA_AXES)
        ],
        # The norm of a gradient is divided for finite p alone, for p = inf alone, or for every p.
        "norm_divided": [
            [one if is_infinite else other for one, other, is_infinite in zip(right, divided, infinite, strict=True)],
            [other if is_infinite else one for one, other, is_infinite in zip(right, divided, infinite, strict=True)],
            divided,
        ],
        "sharded_divided": [
            [GradientsOfRanks(world, mesh, ranks, axes, ("replicated", "sharded")).norm(p) for p in powers]
            for axes in (REPLICA_AXES, ("dp", "tp"))
        ],
        "root_forgotten": [[one if p == math.inf else one**p for one, p in zip(right, powers, strict=True)]],
        "power_ignored": [[gradients.norm(2.0) for _ in powers]],
        # Within one replica of the model nothing has replicas along dp.
        "one_copy_only": [[GradientsOfRanks(world, mesh, replica, ("tp", ENDS)).norm(p) for p in powers]],
        "copies_counted_each": [[one.norm(p) for p in powers] for one in overlooked],
        "stage_by_stage": [[one.norm(p) for p in powers] for one in of_stage],
        # The largest values of the ranks are added, for p = inf; in "norms_added" their norms, for any other p.
        "largest_summed": [[gradients.norm(p, 1.0 if p == math.inf else p) for p in powers]],
        "norms_added": [[gradients.norm(p, math.inf if p == math.inf else 1.0) for p in powers]],
    }


def judge_norm(world: JudgedWorld) -> Iterator[Judgement]:
    """Every rank returns the norm of all entries, each counted once, and sends few numbers for it."""
    mesh, powers = mesh_in(world.inputs[0]), world.inputs[0]["powers"]
    gradients = GradientsOfRanks(world, mesh, range(world.size))
    right = [gradients.norm(p) for p in powers]
    is_right = all(are_equal_norms(right, got) for got in world.outputs)
    # Of each rank the norms that each mistake gives; a mistake is named if one way of making it gives those of all.
    wrong = [] if is_right else [wrong_norms(world, mesh, rank, powers) for rank in range(world.size)]
    known = [
        key
        for key in (wrong[0] if wrong else ())
        if any(all(map(are_equal_norms, way, world.outputs)) for way in zip(*(one[key] for one in wrong), strict=True))
    ]
    dp = next(one["dp"] for inputs in world.inputs for one in inputs["placements"])  # the same for all gradients
    for rank, got in enumerate(world.outputs):
        for p, expected, value in zip(powers, right, got, strict=True):
            what = words["norm_of_all"].format("inf" if p == math.inf else int(p), mesh_text(sizes_of(mesh)))
            finding = expect_number(what, expected, value, rank=rank, mistakes=dict.fromkeys(known, value))
            rule = words["largest_entry"].format(world.size) if p == math.inf else words["entries_once"]
            yield explained(finding, rule.format(words[f"zero_{dp}"]))
        num_bytes = world.logs[rank].payload_bytes()
        message = words["numbers_per_norm"].format(num_bytes, len(powers), MAX_BYTES)
        yield expect(num_bytes <= MAX_BYTES * len(powers), message, rank=rank)


def recognise_norm(failure: RunFailure) -> list[str]:
    """The hints that fit the error with which a run ended."""
    if failure.kind in ("hang", "mismatch"):
        return ["not_all_take_part"]
    is_empty = re.search(r"non-empty|an empty|is empty|numel\(\) == 0", failure.text)
    return ["rank_without_gradients"] if failure.kind == "exception" and is_empty else []


def are_equal_norms(expected: Sequence[float], got: Sequence[float]) -> bool:
    """Whether a rank returned all of these norms, up to rounding."""
    return all(math.isclose(*pair, rel_tol=1e-9) for pair in zip(expected, got, strict=True))


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
