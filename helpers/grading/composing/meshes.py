"""What the tasks of lab 09 share: the meshes of a world, and on a rank their groups."""

from __future__ import annotations

from functools import cache

import torch.distributed as dist

from helpers.grading.drawing import Draw
from helpers.mesh import Mesh

AXES = ("dp", "pp", "tp")
ENDS = "ends"  # the first and the last stage, which share a tied weight


@cache
def meshes_of(world_size: int) -> list[Mesh]:
    """All of them, those of several axes first."""
    divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
    every = [(dp, pp, world_size // (dp * pp)) for dp in divisors for pp in divisors if world_size % (dp * pp) == 0]
    return [Mesh(dp=dp, pp=pp, tp=tp) for dp, pp, tp in sorted(every, key=lambda sizes: sizes.count(1))]


def drawn(rng: Draw, world_size: int) -> tuple[int, Mesh]:
    """Its number among them: one after the other, so that six cases bring each mesh of up to five ranks."""
    meshes = meshes_of(world_size)
    number = rng.case.number % len(meshes)
    return number, meshes[number]


def sizes_of(mesh: Mesh) -> dict[str, int]:
    return {axis: getattr(mesh, axis) for axis in AXES}


def told(mesh: Mesh) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes_of(mesh).items())


def is_end(mesh: Mesh, stage: int) -> bool:
    return mesh.pp > 1 and stage in (0, mesh.pp - 1)


def members(mesh: Mesh, axis: str) -> list[list[int]]:
    """All groups of an axis, or of the ends of each pipeline; a pipeline of one stage has no ends."""
    if axis == ENDS:
        return [[ranks[0], ranks[-1]] for ranks in mesh.groups("pp")] if mesh.pp > 1 else []
    return mesh.groups(axis)


def groups_on(rank: int, mesh: Mesh) -> dict[str, dist.ProcessGroup]:
    """This rank's process group on each axis, and "ends" if it stands at one."""
    made = _made(dist.group.WORLD)
    return {axis: made[tuple(ranks)] for axis in (*AXES, ENDS) for ranks in members(mesh, axis) if rank in ranks}


@cache
def _made(world: dist.ProcessGroup) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """Those of all meshes of this world at once, before any answer can stop a rank between two of them."""
    every = {
        tuple(ranks)
        for mesh in meshes_of(dist.get_world_size())
        for axis in (*AXES, ENDS)
        for ranks in members(mesh, axis)
    }
    return {ranks: dist.new_group(list(ranks)) for ranks in sorted(every)}
