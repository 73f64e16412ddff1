"""09.places: where a rank stands on a mesh, and all groups of each axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from helpers.grading.composing import hints
from helpers.grading.composing.meshes import AXES, sizes_of, told
from helpers.grading.drawing import Draw
from helpers.grading.kit.judging import expect, expect_equal
from helpers.grading.task import Finding, Task, Trial, World
from helpers.mesh import Mesh
from helpers.words import Words

RIGHT = ("tp", "dp", "pp")  # fastest first
Answer = tuple[dict[str, int], dict[str, list[list[int]]]]


def make(rng: Draw, world_size: int) -> list[dict[str, Any]]:
    """Each axis alone, each two together, and all three; no two axes of one size, so that none is taken for another."""
    sizes = [(1, 1, 1), (rng.integer(2, 5), 1, 1), (1, rng.integer(2, 5), 1), (1, 1, rng.integer(2, 5))]
    sizes += [(2, 2, 2), (2, 1, 4), (3, 2, 1), (1, 4, 2), rng.one_of((2, 3, 4), (4, 3, 2), (3, 2, 4), (3, 4, 2))]
    return [{"sizes": sizes}]


def act(submitted: Callable, inputs: dict[str, Any], trial: Trial) -> list[list[Any]]:
    return [[submitted(rank, *sizes) for rank in range(sizes[0] * sizes[1] * sizes[2])] for sizes in inputs["sizes"]]


# -- the right one, and what people write instead --------------------------------------------------------------------
def places(rank: int, mesh: Mesh, order: Sequence[str] = RIGHT) -> Answer:
    """order: of the axes, the one in which neighbours lie first."""
    world = [_place(one, sizes_of(mesh), order) for one in range(mesh.world_size)]
    groups: dict[str, list[list[int]]] = {}
    for axis in AXES:
        found: dict[tuple[int, ...], list[int]] = {}
        for one, place in enumerate(world):
            found.setdefault(tuple(place[other] for other in AXES if other != axis), []).append(one)
        groups[axis] = sorted(found.values())
    return world[rank], groups


def _place(rank: int, sizes: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    place = {}
    for axis in order:
        rank, place[axis] = divmod(rank, sizes[axis])
    return {axis: place[axis] for axis in AXES}


def own_first(rank: int, mesh: Mesh) -> Answer:
    place, groups = places(rank, mesh)
    return place, {axis: sorted(every, key=lambda ranks: rank not in ranks) for axis, every in groups.items()}


def alike(rank: int, mesh: Mesh) -> Answer:
    """A group of those with the same coordinate on the axis."""
    world = [_place(one, sizes_of(mesh), RIGHT) for one in range(mesh.world_size)]
    numbers = {axis: range(size) for axis, size in sizes_of(mesh).items()}
    groups = {a: [[r for r, place in enumerate(world) if place[a] == i] for i in numbers[a]] for a in AXES}
    return world[rank], groups


WRONG: dict[str, list[Callable[[int, Mesh], Answer]]] = {
    "own_group_first": [own_first],
    "those_alike": [alike],
    "pipeline_before_data": [lambda rank, mesh: places(rank, mesh, ("tp", "pp", "dp"))],
    "tensor_ranks_apart": [
        lambda rank, mesh, order=order: places(rank, mesh, order)
        for order in (("pp", "dp", "tp"), ("dp", "pp", "tp"), ("dp", "tp", "pp"), ("pp", "tp", "dp"))
    ],
}


def judge(world: World) -> Iterator[Finding]:
    """A mistake is known if it gives every answer of every rank on every mesh."""
    meshes = [Mesh(dp=dp, pp=pp, tp=tp) for dp, pp, tp in world.inputs[0]["sizes"]]
    asked = [(rank, mesh) for mesh in meshes for rank in range(mesh.world_size)]
    given = [answer for of_mesh in world.outputs[0] for answer in of_mesh]
    known = [key for key, several in WRONG.items() if any(_gives(wrong, asked, given) for wrong in several)]
    for (rank, mesh), answer in zip(asked, given, strict=True):
        note, due = (rank, told(mesh)), places(rank, mesh)
        are_two = isinstance(answer, list) and len(answer) == 2 and all(isinstance(one, Mapping) for one in answer)
        yield expect(
            are_two, "places does not return two dicts: place, groups", "places 应返回两个 dict：place, groups"
        )
        if not are_two:
            return
        for axis in AXES:
            for what, right, got in zip((PLACE, GROUPS), due, answer, strict=True):
                value = got.get(axis)
                yield expect_equal(what.format(axis, *note), right[axis], value, mistakes=dict.fromkeys(known, value))


def _gives(wrong: Callable[[int, Mesh], Answer], asked: Sequence[tuple[int, Mesh]], given: Sequence[Any]) -> bool:
    return all(answer == list(wrong(*one)) for one, answer in zip(asked, given, strict=True))


PLACE = Words(en="place[{0!r}] of rank {1} ({2})", zh="rank {1} 的 place[{0!r}]（{2}）")
GROUPS = Words(en="groups[{0!r}] on rank {1} ({2})", zh="rank {1} 上的 groups[{0!r}]（{2}）")
PLACES = Task(
    key="09.places",
    signature="places(rank, dp, pp, tp)",
    make=make,
    act=act,
    judge=judge,
    hints=hints.of(*WRONG),
    world_sizes=(1,),
    unit="device",
)
