"""Provides the meshes of a number of ranks, for the tasks of lab 09.

A `Mesh(dp=2, pp=1, tp=2)` numbers four ranks along three axes: dp for data parallel replicas, pp for pipeline stages,
tp for tensor parallel shards. `mesh.groups("tp")` are the lists of ranks that differ on this axis alone, and
`mesh.coordinates(rank)` maps each axis to the rank's coordinate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from helpers.specs.mesh import Mesh

if TYPE_CHECKING:
    from helpers.grading.tensor_cases import CaseGenerator

AXES = ("dp", "pp", "tp")  # in the order in which the lab names them
ENDS = "ends"  # the first and the last stage of a pipeline, which share a tied weight


def meshes_of(world_size: int) -> list[Mesh]:
    """All meshes of `world_size` ranks. Meshes with several axes come first, since they show more mistakes."""
    divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
    # Every (dp, pp, tp) whose product is the number of ranks.
    sizes = [(dp, pp, world_size // (dp * pp)) for dp in divisors for pp in divisors if world_size % (dp * pp) == 0]
    # The fewer sizes are 1, the earlier a mesh comes.
    return [Mesh(dp=dp, pp=pp, tp=tp) for dp, pp, tp in sorted(sizes, key=lambda one: one.count(1))]


def mesh_of_case(rng: CaseGenerator, world_size: int) -> Mesh:
    """The mesh whose turn it is, by the number of the case: six cases bring every mesh of up to five ranks."""
    meshes = meshes_of(world_size)
    return meshes[rng.case.number % len(meshes)]


def sizes_of(mesh: Mesh) -> dict[str, int]:
    """The number of ranks on each axis."""
    return {axis: getattr(mesh, axis) for axis in AXES}


def coordinates_of(mesh: Mesh, rank: int) -> dict[str, int]:
    """The rank's coordinates on the axes of this lab, in their order."""
    coordinates = mesh.coordinates(rank)
    return {axis: coordinates[axis] for axis in AXES}


def mesh_text(numbers: Mapping[str, int]) -> str:
    """How a message names the sizes of a mesh, or the coordinates of a rank: "dp=2, pp=1, tp=2"."""
    return ", ".join(f"{axis}={numbers[axis]}" for axis in AXES)


def is_end(mesh: Mesh, stage: int) -> bool:
    """Whether this is the first or the last of several stages."""
    return mesh.pp > 1 and stage in (0, mesh.pp - 1)


def groups_along(mesh: Mesh, axis: str) -> list[list[int]]:
    """The ranks of every group on an axis. On ENDS that is the first and last rank of each pipeline with stages."""
    if axis == ENDS:
        return [[ranks[0], ranks[-1]] for ranks in mesh.groups("pp")] if mesh.pp > 1 else []
    return mesh.groups(axis)


def group_inputs(mesh: Mesh, rank: int) -> dict[str, Any]:
    """The part of a rank's inputs that `mesh_in` and `process_groups` read.

    groups: for each axis the rank's own group. all_groups: those of all meshes of this size, in one order.
    """
    axes = (*AXES, ENDS)
    local = {axis: ranks for axis in axes for ranks in groups_along(mesh, axis) if rank in ranks}
    # A set, because several meshes have the same group.
    every = {tuple(ranks) for one in meshes_of(mesh.world_size) for axis in axes for ranks in groups_along(one, axis)}
    return {"mesh": sizes_of(mesh), "groups": local, "all_groups": [list(ranks) for ranks in sorted(every)]}


def mesh_in(inputs: dict[str, Any]) -> Mesh:
    """The mesh that `group_inputs` put into a rank's inputs."""
    return Mesh(**inputs["mesh"])
