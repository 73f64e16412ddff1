"""This rank's place on each axis of a mesh: its groups, and its random numbers."""

from __future__ import annotations

import base64
from functools import cache

import torch
import torch.distributed as dist

from helpers import devices
from helpers.specs.mesh import Mesh

SEED_OF_SHARDS = 2718  # Megatron's: where tensor ranks must draw differently, seed + 2718 + tp rank
SEEDS_OF_A_STAGE = 1009  # a prime, so that stages and copies never meet


class Axes:
    """The groups of this rank: `group("dp")`, or of several axes together, `group("dp", "pp")`.

    Raises ValueError where the mesh is not for as many ranks as there are.
    """

    def __init__(self, mesh: Mesh):
        if mesh.world_size != dist.get_world_size():
            sizes = " x ".join(f"{axis}={getattr(mesh, axis)}" for axis in ("pp", "dp", "cp", "tp"))
            raise ValueError(
                f"the plan is for {sizes} = {mesh.world_size} ranks, but there are {dist.get_world_size()}: "
                "start as many, or change an axis"
            )
        self.mesh, self.rank = mesh, dist.get_rank()
        self.place = mesh.coordinates(self.rank)

    def group(self, *axes: str) -> dist.ProcessGroup:
        return _group_of(self.rank, tuple(map(tuple, self.mesh.groups(*axes))), dist.group.WORLD)

    def seed(self, seed: int) -> None:
        """Random numbers: the same on all ranks of a tp group, others on each copy and each stage.

        On what a tp group shares, dropout must drop the same places on all its ranks; where each has a part, it asks
        `ShardRandom` for numbers of its own. Copies see other data and stages other layers: equal masks would be
        noise that is not independent.
        """
        torch.manual_seed(seed + SEEDS_OF_A_STAGE * (self.place["dp"] + self.mesh.dp * self.place["pp"]))

    def random_state(self) -> dict[str, str]:
        """Where this rank's generators are, as text: with them a resumed run drops what it would have dropped."""
        found = devices.random_states()
        return {device.type: base64.b64encode(state.numpy().tobytes()).decode() for device, state in found.items()}

    def set_random_state(self, told: dict[str, str]) -> None:
        states = {
            device: torch.frombuffer(bytearray(base64.b64decode(told[device.type])), dtype=torch.uint8)
            for device in devices.random_states()
            if device.type in told
        }
        devices.set_random_states(states)


@cache
def _group_of(rank: int, groups: tuple[tuple[int, ...], ...], world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Every rank makes all groups of an axis, in one order, since their names are counted; once, since they connect."""
    made = [dist.new_group(list(ranks)) for ranks in groups]
    return next(group for group, ranks in zip(made, groups, strict=True) if rank in ranks)
