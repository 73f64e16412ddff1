"""09.norm: one norm of all gradients of all ranks, where each entry counts once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from helpers.grading.cases import CaseGenerator, Variations
from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import ENDS, drawn, given, groups_on, is_end, mesh_in, told
from helpers.grading.kit.comparisons import expect, expect_number
from helpers.grading.task import JudgedWorld, Judgement, RankContext, Task
from helpers.learner.words import Words
from helpers.specs.mesh import Mesh

TP = {"matrix": "sharded", "norm": "replicated", "bias": "replicated", "tied": "sharded"}
MOST_BYTES = 8 * 4  # a number for each axis, and one more


def make_inputs(rng: CaseGenerator, world_size: int) -> list[dict[str, Any]]:
    """In every other case ZeRO has cut every gradient over dp. A stage in the middle has few, or none."""
    mesh = drawn(rng, world_size)
    dp = "sharded" if rng.case.number % 2 else "replicated"
    powers = [2.0, math.inf, rng.one_of(1.0, 3.0)]
    known: dict[tuple, Tensor] = {}
    inputs = []
    for rank in range(world_size):
        place = mesh.coordinates(rank)
        own: dict[str, Any] = given(mesh, rank) | {"powers": powers, "gradients": [], "placements": []}
        is_tied = is_end(mesh, place["pp"])
        for name in TP if is_tied or mesh.pp == 1 else list(TP)[: 2 * (mesh.pp > 3)]:
            lies = {"dp": dp, "tp": TP[name]} | ({ENDS: "replicated"} if is_tied and name == "tied" else {})
            spot = [place[axis] for axis in ("dp", "tp") if lies[axis] == "sharded"] + [place["pp"]] * (
                ENDS not in lies
            )
            own["gradients"].append(known.setdefault((name, *spot), rng.tensor(rng.integer(2, 5))))
            own["placements"].append(lies)
        inputs.append(own)
    return inputs


def run_submission(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[float]:
    groups = groups_on(inputs)
    gradients, placements = inputs["gradients"], inputs["placements"]
    return [float(submitted(list(gradients), list(placements), groups, p)) for p in inputs["powers"]]


# -- the right one, and what people write instead --------------------------------------------------------------------
COPIES = ("dp", "tp", ENDS)  # axes on which a gradient may have copies


class Held:
    """The gradients of some ranks. counted: the axes whose copies count once; on the others each counts."""

    def __init__(self, world: JudgedWorld, mesh: Mesh, ranks: Iterable[int], counted: Sequence[str] = COPIES):
        sizes = {"dp": mesh.dp, "tp": mesh.tp, ENDS: 2}
        self.of_ranks: list[list[tuple[Tensor, int]]] = []
        for one in (world.inputs[rank] for rank in ranks):
            pairs = zip(one["gradients"], one["placements"], strict=True)
            copies = [(g, [sizes[axis] for axis in counted if lies.get(axis) == "replicated"]) for g, lies in pairs]
            self.of_ranks.append([(g, math.prod(numbers)) for g, numbers in copies])

    def norm(self, p: float, within: float | None = None) -> float:
        """within: the power by which the norms of ranks are added up, p itself if none is given."""
        own = [self._own(rank, p) for rank in self.of_ranks]
        within = p if within is None else within
        return max(own, default=0.0) if within == math.inf else sum(one**within for one in own) ** (1 / within)

    def _own(self, rank: list[tuple[Tensor, int]], p: float) -> float:
        if p == math.inf:
            return max((float(g.abs().max()) for g, _ in rank), default=0.0)
        return sum(float((g.abs() ** p).sum()) / copies for g, copies in rank) ** (1 / p)


def wrong_norms(world: JudgedWorld, mesh: Mesh, rank: int, powers: Sequence[float]) -> dict[str, list[list[float]]]:
    every = range(world.size)
    held = Held(world, mesh, every)
    miscounted = [Held(world, mesh, every, counted) for counted in ((), ("dp", ENDS), ("tp", ENDS), ("dp", "tp"))]
    places = [mesh.coordinates(one) for one in every]
    copy, stage = ([one for one in every if places[one][axis] == places[rank][axis]] for axis in ("dp", "pp"))
    of_stage = [Held(world, mesh, stage, counted) for counted in (("dp", "tp"), COPIES)]
    return {
        "one_copy_only": [[Held(world, mesh, copy, ("tp", ENDS)).norm(p) for p in powers]],
        "copies_counted_each": [[one.norm(p) for p in powers] for one in miscounted],
        "stage_by_stage": [[one.norm(p) for p in powers] for one in of_stage],
        "largest_summed": [[held.norm(p, 1.0 if p == math.inf else p) for p in powers]],
        "norms_added": [[held.norm(p, math.inf if p == math.inf else 1.0) for p in powers]],
    }


def judge(world: JudgedWorld) -> Iterator[Judgement]:
    """A mistake is known on a rank if it gives all of the rank's norms."""
    mesh, powers = mesh_in(world.inputs[0]), world.inputs[0]["powers"]
    held = Held(world, mesh, range(world.size))
    right = [held.norm(p) for p in powers]
    for rank, got in enumerate(world.outputs):
        wrong = {} if _alike(right, got) else wrong_norms(world, mesh, rank, powers)
        known = [key for key, several in wrong.items() if any(_alike(one, got) for one in several)]
        for p, due, value in zip(powers, right, got, strict=True):
            what = NORM.format("inf" if p == math.inf else int(p), told(mesh))
            yield expect_number(what, due, value, rank=rank, mistakes=dict.fromkeys(known, value))
        few = world.logs[rank].payload_bytes() <= MOST_BYTES * len(powers)
        yield expect(few, "it sends more than four numbers per norm", "每个范数发送的不止四个数", rank=rank)


def _alike(wrong: Sequence[float], got: Sequence[float]) -> bool:
    return all(math.isclose(*pair, rel_tol=1e-9) for pair in zip(wrong, got, strict=True))


NORM = Words(en="the norm with p = {} ({})", zh="p = {} 的范数（{}）")
HINTS = ("one_copy_only", "copies_counted_each", "stage_by_stage", "largest_summed", "norms_added")
TASK = Task(
    key="09.norm",
    signature="gradient_norm(gradients, placements, groups, p)",
    make_inputs=make_inputs,
    variations=Variations(min_cases=6),
    run_submission=run_submission,
    judge=judge,
    must_not_change=("gradients", "placements", "groups"),
    hints=LAB.hints(*HINTS),
)
