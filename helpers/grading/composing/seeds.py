"""09.seeds: which ranks draw the same random numbers, and which must not.

Any numbers will do. What is judged is who shares them: the ranks of a mesh fall into parts that draw alike, and these
are the ranks that agree in the coordinates of some axes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from helpers.grading.composing import hints
from helpers.grading.composing.meshes import AXES, sizes_of, told
from helpers.grading.drawing import Draw
from helpers.grading.kit.judging import expect
from helpers.grading.task import Finding, Task, Trial, World
from helpers.mesh import Mesh
from helpers.words import Words

DIFFER = {  # axes on which other coordinates draw other numbers
    "whole_weights": ("pp",),
    "cut_weights": ("pp", "tp"),
    "whole_dropout": ("dp", "pp"),
    "cut_dropout": ("dp", "pp", "tp"),
}
SMALL, LARGE = [(2, 2, 2), (2, 1, 4), (1, 3, 2), (1, 1, 1)], [(16, 4, 8), (160, 2, 2), (2, 40, 2)]
SEEDS = range(-(2**63), 2**64)  # that torch.manual_seed takes


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    calls = [{"sizes": sizes, "seed": rng.integer(1, 10**6)} for sizes in SMALL + LARGE]
    return [{"calls": calls}]


def act(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> list[list[Any]]:
    answers = []
    for call in inputs["calls"]:
        mesh = _mesh(call)
        answers.append([submitted(call["seed"], _place(mesh, rank), sizes_of(mesh)) for rank in range(mesh.world_size)])
    return answers


def _mesh(call: Mapping[str, Any]) -> Mesh:
    return Mesh(**dict(zip(AXES, call["sizes"], strict=True)))


def _place(mesh: Mesh, rank: int) -> dict[str, int]:
    place = mesh.coordinates(rank)
    return {axis: place[axis] for axis in AXES}


# -- who draws alike -------------------------------------------------------------------------------------------------
def judge(world: World) -> Iterator[Finding]:
    """Each kind on each mesh. A mistake is known if each kind that is wrong somewhere is wrong by it."""
    asked = [
        (mesh, answers) for mesh, answers in zip(map(_mesh, world.inputs[0]["calls"]), world.outputs[0], strict=True)
    ]
    odd = next((one for _, answers in asked for one in answers if not _is_answer(one)), None)
    keys = ", ".join(DIFFER)
    en, zh = (
        f"seeds returns {odd!r}, expected a dict of whole numbers: {keys}",
        f"seeds 返回 {odd!r}，应为整数的 dict：{keys}",
    )
    yield expect(odd is None, en, zh)
    if odd is not None:
        return
    found = [(kind, mesh, [one[kind] for one in answers]) for mesh, answers in asked for kind in DIFFER]
    wrong = {kind: _mistakes(kind, [(mesh, seeds) for one, mesh, seeds in found if one == kind]) for kind in DIFFER}
    known = set.intersection(*[keys for keys in wrong.values() if keys is not None] or [set()])
    for kind, mesh, seeds in found:
        pair = _first_wrong(mesh, seeds, DIFFER[kind])
        yield _told(kind, mesh, seeds, pair, sorted(known)) if pair else expect(True, "", "")


def _is_answer(one: Any) -> bool:
    return isinstance(one, Mapping) and all(type(one.get(kind)) is int and one[kind] in SEEDS for kind in DIFFER)


def _mistakes(kind: str, asked: Sequence[tuple[Mesh, list[int]]]) -> set[str] | None:
    """Which mistakes explain the seeds of a kind on all meshes; None if nothing is wrong with them."""
    if not any(_first_wrong(mesh, seeds, DIFFER[kind]) for mesh, seeds in asked):
        return None
    own = set(DIFFER[kind])
    taken = [set(axes) for n in range(4) for axes in combinations(AXES, n)]
    taken = [axes for axes in taken if not any(_first_wrong(mesh, seeds, axes) for mesh, seeds in asked)]
    if not taken:
        return {"sums_collide"}
    (axes,) = taken
    lacks, has = own - axes, axes - own
    known = {"tensor_ranks_alike": lacks == {"tp"}, "copies_alike": "dp" in lacks, "whole_drawn_apart": bool(has)}
    return {key for key, fits in known.items() if fits}


def _first_wrong(mesh: Mesh, seeds: Sequence[int], axes: Sequence[str] | set[str]) -> tuple[int, int] | None:
    """The first two ranks whose seeds are equal and should not be, or the other way round."""
    of_spot: dict[Hashable, int] = {}
    of_seed: dict[int, int] = {}
    for rank, seed in enumerate(seeds):
        place = _place(mesh, rank)
        spot = tuple(place[axis] for axis in AXES if axis in axes)
        others = of_spot.setdefault(spot, rank), of_seed.setdefault(seed, rank)
        if others[0] != others[1]:
            return min(others), rank
    return None


def _told(kind: str, mesh: Mesh, seeds: Sequence[int], pair: tuple[int, int], known: Sequence[str]) -> Finding:
    a, b = pair
    says = (SAME if seeds[a] == seeds[b] else OTHER).format(kind, a, b, seeds[a], seeds[b], told(mesh))
    return expect(False, says.en, says.zh, mistakes=known)


SAME = Words(
    en="{0} ({5}): ranks {1} and {2} both get the seed {3}, and must draw different numbers",
    zh="{0}（{5}）：rank {1} 和 {2} 的种子都是 {3}，它们必须抽到不同的数",
)
OTHER = Words(
    en="{0} ({5}): ranks {1} and {2} get the seeds {3} and {4}, and must draw the same numbers",
    zh="{0}（{5}）：rank {1} 和 {2} 的种子是 {3} 和 {4}，它们必须抽到相同的数",
)
TASK = Task(
    key="09.seeds",
    signature="seeds(seed, place, sizes)",
    make=make,
    act=act,
    judge=judge,
    keeps=("place", "sizes"),
    hints=hints.of("sums_collide", "tensor_ranks_alike", "copies_alike", "whole_drawn_apart"),
    world_sizes=(1,),
    unit="device",
)
