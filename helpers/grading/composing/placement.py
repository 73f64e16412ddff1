"""Judges 09.places and 09.seeds: where a rank of a mesh is, and what it draws.

09.places asks for a rank's coordinates and for all groups. 09.seeds asks for seeds, which some ranks must share and
others must not. Its judge names mistakes itself, because any numbers will do as seeds, and a mistake can be made in any
of four kinds of them, so no single edit stands for it. The learner's function is called in one process for every rank
of several meshes.

How to read it. A case is the list of arguments of one call of the learner's function; `make_…` draws the cases of a
task with `rng`, of which `rng.integer(3, 5)` is 3, 4 or 5. `run_…` calls the learner's function, `submitted`, with
every case and makes the answers comparable. `question_task`, from the kit's answers.py, builds the Task, which compares
the answers with those of the right function; below a sentence about a wrong one stands its rule. `Words` and `words[…]`
are texts in English and Chinese. A `Mesh` numbers ranks along the axes dp, pp and tp, in AXES; `coordinates_of` gives a
rank's coordinate on each axis.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.grading.composing import LAB
from helpers.grading.composing.meshes import AXES, coordinates_of, mesh_text, sizes_of
from helpers.grading.kit import answers
from helpers.grading.kit.answers import question_task, run_questions
from helpers.grading.kit.comparisons import COMMA, expect
from helpers.grading.plain_data import shortened
from helpers.grading.task import (
    JudgedWorld,
    Judgement,
    NumberGenerator,
    RankContext,
    Task,
)
from helpers.learner.words import Words
from helpers.specs.mesh import Mesh

words = LAB.messages

# -- 09.places -------------------------------------------------------------------------------------------------------
Places = list[Any]  # an answer as a list: a dict of the rank's coordinates, then for each of AXES all its groups


def make_places(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank of meshes with one axis, with two and with three. sizes: (dp, pp, tp) of each mesh."""
    sizes = [(1, 1, 1), (rng.integer(2, 5), 1, 1), (1, rng.integer(2, 5), 1), (1, 1, rng.integer(2, 5))]
    sizes += [(2, 2, 2), (2, 1, 4), (3, 2, 1), (1, 4, 2), rng.one_of((2, 3, 4), (4, 3, 2), (3, 2, 4), (3, 4, 2))]
    return [{"cases": [[rank, dp, pp, tp] for dp, pp, tp in sizes for rank in range(dp * pp * tp)]}]


def run_places(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Places]:
    """The learner's answer to each case, as a list."""
    return [as_columns(one) for one in run_questions(submitted, inputs, context)]


def as_columns(answer: Any) -> Places:
    """The two dicts of an answer, the place (coordinates by axis) and the groups by axis, as a list.

    An answer of another form stands in every column, where it is wrong.
    """
    place, groups = answer if isinstance(answer, tuple | list) and len(answer) == 2 else (answer, answer)
    place, groups = with_other_types(place), with_other_types(groups)
    return [place, *(groups.get(axis) if isinstance(groups, Mapping) else groups for axis in AXES)]


def with_other_types(value: Any) -> Any:
    """The value, in which a number that is no int is a text with its type, so that 1.0 differs from 1."""
    if isinstance(value, Mapping):
        return {key: with_other_types(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [with_other_types(one) for one in value]
    return value if type(value) is int else f"{value} ({type(value).__name__})"


def right_places(rank: int, *sizes: int) -> Places:
    """The right answer. sizes: dp, pp and tp."""
    mesh = Mesh(**dict(zip(AXES, sizes, strict=True)))
    return [coordinates_of(mesh, rank), *(mesh.groups(axis) for axis in AXES)]


def rule_of_place(case: Sequence[int], answer: Any) -> Words:
    """What the coordinates of this rank must add up to."""
    rank, dp, _, tp = case
    return words["rule_of_place"].format(rank, tp, tp * dp)


def rule_of_groups(axis: str, case: Sequence[int], answer: Any) -> Words:
    """How many groups the axis has, and which ranks they hold."""
    _, dp, pp, tp = case
    size, distance = {"dp": (dp, tp), "pp": (pp, tp * dp), "tp": (tp, 1)}[axis]
    return words["rule_of_groups"].format(axis, dp * pp * tp // size, size, distance)


PLACES = question_task(
    "09.places",
    "places(rank, dp, pp, tp)",
    [words["place"], *(words["groups_of_axis"].format(axis) for axis in AXES)],  # the columns of Places
    right_places,
    rules=[rule_of_place, *(functools.partial(rule_of_groups, axis) for axis in AXES)],
    make_inputs=make_places,
    run_submission=run_places,
    needs_torch=False,
)


# -- 09.seeds --------------------------------------------------------------------------------------------------------
LOST = {"tp": "tensor_ranks_alike", "dp": "copies_alike", "pp": "stages_alike"}  # an axis that seeds ignore -> the hint
# The answer is a dict with a seed of each kind: for drawing weights, or for dropout, in layers that are replicated on
# tp ("whole") or sharded over tp ("cut"). Any numbers will do, so the judge looks only at which ranks share one: it
# replaces each rank's seed by the first rank that has the same.
AXES_OF_KIND = {  # ranks must draw other numbers if they differ on one of these axes, and the same ones if not
    "whole_weights": ("pp",),
    "cut_weights": ("pp", "tp"),
    "whole_dropout": ("dp", "pp"),
    "cut_dropout": ("dp", "pp", "tp"),
}
# Positions on a long axis. Every number up to 169 is the difference of two of them, and so is what else people multiply
# by, so that coordinates times a fixed factor collide.
POSITIONS = (*range(13), *range(13, 170, 13), 255, 256, 500, 512, 999, 1000)


@dataclass(frozen=True)
class LongMesh:
    """Some ranks of a mesh with one long axis: those at POSITIONS on that axis. It has the attributes of a Mesh."""

    dp: int = 2
    pp: int = 2
    tp: int = 2

    @functools.cached_property
    def places(self) -> list[dict[str, int]]:
        """The coordinates of these ranks, in the order of ranks."""
        p, d, t = ([one for one in POSITIONS if one < size] for size in (self.pp, self.dp, self.tp))
        return [{"dp": dp, "pp": pp, "tp": tp} for pp, dp, tp in itertools.product(p, d, t)]

    @property
    def world_size(self) -> int:
        return len(self.places)

    def coordinates(self, number: int) -> dict[str, int]:
        """The coordinates of the rank that stands at this place of the list."""
        return self.places[number]

    def groups(self, axis: str) -> list[list[int]]:
        """The numbers of those that differ on this axis alone."""
        found: dict[tuple, list[int]] = {}
        for number, place in enumerate(self.places):
            found.setdefault(tuple(place[name] for name in AXES if name != axis), []).append(number)
        return list(found.values())


# The meshes about which 09.seeds asks: these small ones, and the large ones below.
MESHES: list[Mesh | LongMesh] = [
    Mesh(dp=dp, pp=pp, tp=tp) for dp, pp, tp in ((2, 2, 2), (2, 1, 4), (1, 3, 2), (1, 1, 1))
]
# On these large meshes two ranks get the same seed by accident if an answer adds their coordinates, as they are or with
# factors such as 1, 100 and 1000.
MESHES += [Mesh(dp=16, pp=4, tp=8), LongMesh(dp=1001), LongMesh(pp=1001), LongMesh(tp=1001)]
NUM_REPEATED = MESHES[0].world_size  # ranks that are asked again, with another seed and as if in another process
OTHER_SEEDS = (1, 1000, 2**16)  # they are added to the seed of these ranks, to see whether the numbers change
SEED_RANGE = range(2**63)


def make_seeds(rng: NumberGenerator, world_size: int) -> list[dict[str, Any]]:
    """Every rank of every mesh, with one seed for each mesh; at last the ranks of the first mesh with other seeds.

    The first seed is even, so that half of it is also half of the next one, rounded down. The smallest and the largest
    seed come on the last meshes.
    """
    questions = [(rng.integer(1, 10**6), mesh) for mesh in MESHES[1:-2]]
    questions += zip((1, 10**6), MESHES[-2:], strict=True)
    first = 2 * rng.integer(1, 450_000)
    questions = [(first, MESHES[0]), *questions, *((first + more, MESHES[0]) for more in OTHER_SEEDS)]
    return [{"cases": [[seed, place, sizes_of(mesh)] for seed, mesh in questions for place in all_coordinates(mesh)]}]


def run_seeds(submitted: Callable, inputs: dict[str, Any], context: RankContext) -> list[Any]:
    """The seeds for every case, and then those for the first mesh once more, as in a new process.

    There Python salts the hash of texts anew, so an answer must not use it: the function `hash` is replaced among the
    global names of the learner's function, which a wrapper around it has as its attribute `submitted`. A table that the
    function fills from call to call is as it was before the first call, and the calls come in another order.
    """
    names = getattr(getattr(submitted, "submitted", submitted), "__globals__", {})
    tables = {name: copy.deepcopy(value) for name, value in names.items() if isinstance(value, dict | list | set)}
    seeds = answers.run_questions(submitted, inputs, context)
    filled = {name: names[name] for name in tables}
    original, names["hash"] = names.get("hash", hash), lambda value: hash(salted(value))
    names.update(tables)
    try:
        again = answers.run_questions(submitted, {"cases": inputs["cases"][:NUM_REPEATED][::-1]}, context)
        return seeds + again[::-1]
    finally:
        names.update(filled, hash=original)


def salted(value: Any) -> Any:
    """The value with its texts changed. Numbers stay, since their hash is the same in every process."""
    if isinstance(value, tuple):
        return tuple(map(salted, value))
    return f"{value} " if isinstance(value, str) else value


def all_coordinates(mesh: Mesh) -> list[dict[str, int]]:
    """The coordinates of each rank, in the order of ranks."""
    return [coordinates_of(mesh, rank) for rank in range(mesh.world_size)]


def first_ranks(values: Iterable[Hashable]) -> list[int]:
    """For each rank the first rank that has the same value."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(value, rank) for rank, value in enumerate(values)]


def right_first_ranks(mesh: Mesh, axes: Sequence[str]) -> list[int]:
    """The first rank that shares each rank's seed, if seeds differ exactly where coordinates on these axes do."""
    return first_ranks(tuple(place[axis] for axis in axes) for place in all_coordinates(mesh))


def judge_seeds(world: JudgedWorld) -> Iterator[Judgement]:
    """The answers are dicts of integers, depend on the seed, and differ between ranks as `AXES_OF_KIND` says."""
    invalid = [one for one in world.outputs[0] if wrong_kinds(one)]
    shown = (shortened(invalid[0]), COMMA.join(wrong_kinds(invalid[0]))) if invalid else ("", "")
    yield expect(not invalid, words["no_seeds"].format(*shown, COMMA.join(AXES_OF_KIND)))
    if invalid:
        return
    # The answers in the order in which `run_seeds` asked, so each next() is the answer of one rank.
    remaining = iter(world.outputs[0])
    by_mesh = [[next(remaining) for _ in range(mesh.world_size)] for mesh in MESHES]
    *with_other_seeds, with_other_hash = (
        [next(remaining) for _ in range(NUM_REPEATED)] for _ in range(len(OTHER_SEEDS) + 1)
    )
    yield expect(with_other_hash == by_mesh[0], words["hash_is_salted"])
    pairs = [pair for others in with_other_seeds for pair in zip(by_mesh[0], others, strict=True)]
    # Kinds whose seed stays the same on some rank when another seed is given.
    constant = [kind for kind in AXES_OF_KIND if any(one[kind] == other[kind] for one, other in pairs)]
    yield expect(not constant, words["seed_without_effect"].format(COMMA.join(constant)))
    yield from judge_sharing(by_mesh)


def judge_sharing(by_mesh: Sequence[Sequence[Mapping[str, int]]]) -> Iterator[Judgement]:
    """Judges which ranks share a seed. A mistake is named only if it explains every kind that is wrong, on all meshes.

    by_mesh: for each mesh the answers of its ranks.
    """
    # For each kind and each mesh, the first rank that has the same seed as each rank.
    shared = {kind: [first_ranks(one[kind] for one in seeds) for seeds in by_mesh] for kind in AXES_OF_KIND}
    right = {kind: [right_first_ranks(mesh, axes) for mesh in MESHES] for kind, axes in AXES_OF_KIND.items()}
    wrong = [mistakes_in_sharing(kind, got) for kind, got in shared.items() if got != right[kind]]
    known = sorted(set.intersection(*wrong)) if wrong else []
    for kind, several in shared.items():
        for mesh, got, expected in zip(MESHES, several, right[kind], strict=True):
            # The first rank that is wrong shares its seed with an earlier rank than it should, or has another seed than
            # the rank with which it should share one.
            rank = next((rank for rank in range(mesh.world_size) if got[rank] != expected[rank]), 0)
            text = words["same_seed" if got[rank] < expected[rank] else "other_seed"]
            other = min(got[rank], expected[rank])
            places = [mesh.coordinates(one) for one in (rank, other)]
            ranks = [(one["pp"] * mesh.dp + one["dp"]) * mesh.tp + one["tp"] for one in places]
            text = text.format(
                kind, mesh_text(sizes_of(mesh)), *ranks, *map(mesh_text, places), COMMA.join(AXES_OF_KIND[kind])
            )
            yield expect(got == expected, text, mistakes=known)


def wrong_kinds(answer: Any) -> list[str]:
    """The kinds for which an answer has no integer of the right range."""
    seeds = answer if isinstance(answer, Mapping) else {}
    return [kind for kind in AXES_OF_KIND if type(seeds.get(kind)) is not int or seeds[kind] not in SEED_RANGE]


def mistakes_in_sharing(kind: str, shared: Sequence[list[int]]) -> set[str]:
    """Names mistakes by the axes on which the seeds of a kind do differ; if those are right, ranks collide by chance.

    shared: for each mesh, the first rank that has the same seed as each rank.
    """
    differing = set()
    for mesh, firsts in zip(MESHES, shared, strict=True):
        differing |= {
            axis for axis in AXES if any(firsts[a] != firsts[b] for a, *rest in mesh.groups(axis) for b in rest)
        }
    lost, extra = set(AXES_OF_KIND[kind]) - differing, differing - set(AXES_OF_KIND[kind])
    known = {LOST[axis] for axis in lost} | ({"whole_drawn_apart"} if extra else set())
    return known or {"sums_collide"}


SEEDS = Task(
    key="09.seeds",
    signature="seeds(seed, place, sizes)",
    make_inputs=make_seeds,
    run_submission=run_seeds,
    judge=judge_seeds,
    must_not_change=("place", "sizes"),
    runs_on="process",
    needs_torch=False,
)
