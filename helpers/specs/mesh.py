"""Maps ranks to coordinates on a mesh of parallel axes (dp, pp, cp, ep, tp), and lists the groups of each axis.

All rank arithmetic of the course is here; plans, strategies and predictions ask `Plan.mesh`. An axis is a kind of
parallelism, and a group of an axis is a set of ranks that differ in this coordinate alone. Ranks are numbered as in
Megatron-LM, tp fastest, then cp, dp, pp, so that a tp group has neighbouring ranks, which are GPUs of one node
(Narayanan et al. 2021, section 3.2: tensor parallelism inside a node, pipeline parallelism across nodes).

    tp, cp, dp, pp    the axes; their sizes multiply to the world size
    ep                experts are spread over the ranks of dp x cp, so ep divides dp * cp and adds no rank
    edp               the rest of dp x cp: the ranks that hold replicas of the same experts
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from helpers.specs.checks import check_count

ORDER = ("tp", "cp", "dp", "pp")  # fastest first: neighbouring ranks differ in tp
EXPERT_ORDER = ("tp", "ep", "edp", "pp")  # the same ranks, with dp x cp divided into ep and edp instead


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """A mesh of dp * pp * cp * tp ranks.

    Raises ValueError for a size that is not a whole number above 0, or an ep that does not divide dp * cp.
    """

    dp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        for axis in ("dp", "pp", "cp", "ep", "tp"):
            check_count("Mesh", axis, getattr(self, axis))
        if self.dp * self.cp % self.ep:
            raise ValueError(
                f"Mesh: ep={self.ep} does not divide dp * cp = {self.dp * self.cp}, over which experts are spread; "
                "choose an ep that does, or another dp"
            )

    @property
    def world_size(self) -> int:
        return self.dp * self.pp * self.cp * self.tp

    @property
    def edp(self) -> int:
        """The number of replicas of each expert."""
        return self.dp * self.cp // self.ep

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank: {"pp": 0, "dp": 1, "cp": 0, "ep": 0, "tp": 3}. ValueError for an unknown rank."""
        position = self._position(rank, ORDER) | {"ep": self._position(rank, EXPERT_ORDER)["ep"]}
        return {axis: position[axis] for axis in ("pp", "dp", "cp", "ep", "tp")}

    def rank_at(self, **coordinates: int) -> int:
        """The rank at these coordinates; an axis that is left out is at 0.

        ValueError for an axis that does not exist, a coordinate outside it, or an ep that dp and cp contradict.
        """
        unknown = coordinates.keys() - {*ORDER, "ep"}
        if unknown:
            raise ValueError(f"rank_at got {', '.join(sorted(unknown))}; the axes are pp, dp, cp, ep and tp")
        rank, stride = 0, 1
        for axis in ORDER:
            rank += stride * self._checked(axis, coordinates.get(axis, 0))
            stride *= getattr(self, axis)
        ep = self.coordinates(rank)["ep"]
        if coordinates.get("ep", ep) != ep:
            given = ", ".join(f"{axis}={index}" for axis, index in coordinates.items())
            raise ValueError(f"rank_at got {given}, but the rank at that dp and cp has ep={ep}; leave ep out")
        return rank

    def ranks_along(self, axis: str, rank: int) -> list[int]:
        """The group of `rank` on an axis, in order: the rank itself and those that differ in this coordinate alone.

        Raises ValueError for an unknown rank or axis.
        """
        self._position(rank, ORDER)  # raises for an unknown rank
        return next(group for group in self.groups(axis) if rank in group)

    def groups(self, *axes: str) -> list[list[int]]:
        """Every group over one axis, or over several together: groups("dp"), groups("dp", "cp"), groups("ep").

        groups("edp") gives the ranks that hold replicas of one expert, over which its gradients are reduced. Raises
        ValueError for no axis, an unknown one, or ep and edp together with dp or cp, which they replace.
        """
        order = self._order_of(axes)
        groups: dict[tuple[int, ...], list[int]] = {}  # the coordinates on all other axes -> the ranks
        for rank in range(self.world_size):
            position = self._position(rank, order)
            groups.setdefault(tuple(position[axis] for axis in order if axis not in axes), []).append(rank)
        return sorted(groups.values())

    def _order_of(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The order of axes, ORDER or EXPERT_ORDER, in which these axes occur. ValueError where neither has them."""
        for order in (ORDER, EXPERT_ORDER):
            if axes and set(axes) <= set(order):
                return order
        given = ", ".join(map(repr, axes)) or "no axis"
        raise ValueError(f"groups got {given}: give axes of tp, cp, dp, pp, or of tp, ep, edp, pp")

    def _position(self, rank: int, order: tuple[str, ...]) -> dict[str, int]:
        """The coordinates of a rank, by division with remainder along `order`. ValueError for an unknown rank."""
        if rank not in range(self.world_size):
            raise ValueError(f"rank {rank!r} does not exist: the mesh has {self.world_size} ranks, from 0")
        position = {}
        for axis in order:  # divmod leaves the quotient in `rank`, which the next axis divides
            rank, position[axis] = divmod(rank, getattr(self, axis))
        return position

    def _checked(self, axis: str, index: int) -> int:
        """The coordinate itself; ValueError where the axis has no such one."""
        if index not in range(getattr(self, axis)):
            raise ValueError(
                f"{axis}={index!r} is not in the mesh, whose {axis} has {getattr(self, axis)} places, from 0"
            )
        return index


def mesh_of(world_size: int, *, pp: int = 1, cp: int = 1, ep: int = 1, tp: int = 1) -> Mesh:
    """The mesh of `world_size` ranks with these sizes; dp gets the rest. ValueError where that does not divide."""
    others = Mesh(pp=pp, cp=cp, tp=tp).world_size  # ranks of one replica, without ep, which adds no rank
    if world_size < 1 or world_size % others:
        raise ValueError(
            f"a copy takes tp * pp * cp = {others} ranks, which does not divide {world_size}; change an axis"
        )
    return Mesh(dp=world_size // others, pp=pp, cp=cp, ep=ep, tp=tp)
