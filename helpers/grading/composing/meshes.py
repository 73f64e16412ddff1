"""What the tasks of lab 09 share: the meshes of a world, and on a rank their groups."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from helpers.grading.cases import CaseGenerator
from helpers.specs.mesh import Mesh

AXES = ("dp", "pp", "tp")
ENDS = "ends"  # the first and the last stage, which share a tied weight


def meshes_of(world_size: int) -> list[Mesh]:
    """All of them, those of several axes first."""
    divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
    every = [(dp, pp, world_size // (dp * pp)) for dp in divisors for pp in divisors if world_size % (dp * pp) == 0]
    return [Mesh(dp=dp, pp=pp, tp=tp) for dp, pp, tp in sorted(every, key=lambda sizes: sizes.count(1))]


def drawn(rng: CaseGenerator, world_size: int) -> Mesh:
    """One after the other, so that six cases bring each mesh of up to five ranks."""
    meshes = meshes_of(world_size)
    return meshes[rng.case.number % len(meshes)]


def sizes_of(mesh: Mesh) -> dict[str, int]:
    return {axis: getattr(mesh, axis) for axis in AXES}


def place_on(mesh: Mesh, rank: int) -> dict[str, int]:
    """Its coordinates, in the order in which the lab names the axes."""
    place = mesh.coordinates(rank)
    return {axis: place[axis] for axis in AXES}


def told(mesh: Mesh) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes_of(mesh).items())


def is_end(mesh: Mesh, stage: int) -> bool:
    return mesh.pp > 1 and stage in (0, mesh.pp - 1)


def members(mesh: Mesh, axis: str) -> list[list[int]]:
    """All groups of an axis, or of the ends of each pipeline; a pipeline of one stage has no ends."""
    if axis == ENDS:
        return [[ranks[0], ranks[-1]] for ranks in mesh.groups("pp")] if mesh.pp > 1 else []
    return mesh.groups(axis)


def given(mesh: Mesh, rank: int) -> dict[str, Any]:
    """For a rank's inputs: its groups on this mesh, and the groups of all meshes of this world, in one order."""
    axes = (*AXES, ENDS)
    own = {axis: ranks for axis in axes for ranks in members(mesh, axis) if rank in ranks}
    every = {tuple(ranks) for one in meshes_of(mesh.world_size) for axis in axes for ranks in members(one, axis)}
    return {"mesh": sizes_of(mesh), "groups": own, "every": [list(ranks) for ranks in sorted(every)]}


def mesh_in(inputs: dict[str, Any]) -> Mesh:
    return Mesh(**inputs["mesh"])


# -- on a rank -------------------------------------------------------------------------------------------------------
_made: dict[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]] = {}


def groups_on(inputs: dict[str, Any]) -> dict[str, dist.ProcessGroup]:
    """This rank's process group on each axis, and "ends" if it stands at one. Those of all meshes of this world are
    made at once, before any answer can stop a rank between two of them."""
    if (world := dist.group.WORLD) not in _made:
        _made[world] = {tuple(ranks): dist.new_group(ranks) for ranks in inputs["every"]}
    return {axis: _made[world][tuple(ranks)] for axis, ranks in inputs["groups"].items()}
