"""Provides Axes: this rank's process group on each axis of a mesh (dp, tp, pp, cp, ep), and its random seed.

A mesh numbers the ranks along the axes of parallelism: data (dp), tensor (tp), pipeline (pp) and context (cp). The
ranks that differ only in their index on one axis form a group, and so do those that differ only on several axes, such
as dp and cp, whose ranks are divided into ep and edp for experts. The Trainer asks for the group of every collective.
"""

from __future__ import annotations

import base64
from functools import cache

import torch
import torch.distributed as dist

from helpers import devices
from helpers.specs.mesh import Mesh

SEED_OF_SHARDS = 2718  # Megatron's offset: where tensor ranks must draw different numbers, seed + 2718 + tp rank
SEED_STRIDE = 1009  # a prime between the seeds of two stages or replicas, so that two of them never get one seed


class Axes:
    """The process groups of this rank: `group("dp")`, or of several axes together, `group("dp", "pp")`.

    coordinates: this rank's index on each axis. Raises ValueError where the mesh has not as many ranks as there are.
    """

    def __init__(self, mesh: Mesh):
        if mesh.world_size != dist.get_world_size():
            sizes = " x ".join(f"{axis}={getattr(mesh, axis)}" for axis in ("pp", "dp", "cp", "tp"))
            raise ValueError(
                f"the plan is for {sizes} = {mesh.world_size} ranks, but there are {dist.get_world_size()}: "
                "start as many, or change an axis"
            )
        self.mesh, self.rank = mesh, dist.get_rank()
        self.coordinates = mesh.coordinates(self.rank)

    def group(self, *axes: str) -> dist.ProcessGroup:
        """Return the group of the ranks that differ from this one only on these axes."""
        # mesh.groups: the ranks of every group on these axes, here as tuples, which a cache can compare
        return _group_of(self.rank, tuple(map(tuple, self.mesh.groups(*axes))), dist.group.WORLD)

    def seed(self, seed: int) -> None:
        """Seed torch: all ranks of a tp or cp group get one seed, and each replica and each stage gets another.

        On tensors that a tp group replicates, dropout must drop the same elements on all its ranks; for shards, each
        rank asks tensor_parallel's `ShardRandom` for its own numbers. Replicas see other data and stages have other
        layers: equal masks there would be noise that is not independent. So would equal masks on the tokens of two cp
        ranks, which is why cp with dropout is refused. The ranks of ep are replicas with other data, so without cp each
        has its own seed.
        """
        torch.manual_seed(seed + SEED_STRIDE * (self.coordinates["dp"] + self.mesh.dp * self.coordinates["pp"]))

    def random_state(self) -> dict[str, str]:
        """Return the states of this rank's random generators as text, so that a resumed run draws the same masks."""
        states = devices.random_states()
        return {device.type: base64.b64encode(state.numpy().tobytes()).decode() for device, state in states.items()}

    def set_random_state(self, saved: dict[str, str]) -> None:
        """Restore what `random_state` returned. States of devices that this process does not have are left out."""
        states = {
            device: torch.frombuffer(bytearray(base64.b64decode(saved[device.type])), dtype=torch.uint8)
            for device in devices.random_states()
            if device.type in saved
        }
        devices.set_random_states(states)


@cache
def _group_of(rank: int, groups: tuple[tuple[int, ...], ...], world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Make all groups of an axis and return this rank's.

    Every rank makes all of them in the same order, because torch numbers the groups; and only once, because each group
    opens connections. world: all ranks; it is only part of the cache's key, so that a new world gets new groups.
    """
    made = [dist.new_group(list(ranks)) for ranks in groups]
    return next(group for group, ranks in zip(made, groups, strict=True) if rank in ranks)
