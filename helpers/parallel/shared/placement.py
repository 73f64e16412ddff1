"""Records on which ranks a parameter lies, axis by axis, so that sums over ranks count each entry once.

    axis   example                placement    meaning
    tp     a column of a matrix   sharded      each rank of the group stores different entries
           a norm's weight        replicated   all N ranks store the same entries
           one head for 2 ranks   between      2 ranks store each entry
    pp     a stage's weight       sharded      a tied one lies on as many ranks as there are stages that use it
    ep     an expert's matrix     sharded      each rank of the group has other experts
    dp     a shard of ZeRO's      sharded      the shard keeps the other axes of its parameter
The code that shards or replicates a parameter calls `place`; the gradient norm (clip.py) reads it. Replicas under DDP
need no placement, because each rank has the averaged gradients and continues alone.

All ranks of dp x cp have replicas of a parameter, but only some of them have replicas of an expert's. `set_replicas`
records which, and what adds up gradients over dp x cp (DDP, PipelineStage, ZeRO 1 and 2) asks `replicas_of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Placement:
    """How a parameter lies on the ranks of one axis."""

    axis: str  # tp, pp, ep or dp
    ranks: tuple[int, ...]  # the global ranks of this rank's group on the axis
    copies: int  # how many of them store each entry of the parameter: 1 where it is sharded, all where replicated
    group: dist.ProcessGroup | None = field(compare=False, repr=False)

    @classmethod
    def sharded(cls, axis: str, group: dist.ProcessGroup | None, *, copies: int = 1) -> Placement:
        """Return the placement where each rank stores different entries, or where `copies` ranks store the same."""
        group = group if group is not None else dist.group.WORLD
        return cls(axis, tuple(dist.get_process_group_ranks(group)), copies, group)

    @classmethod
    def replicated(cls, axis: str, group: dist.ProcessGroup | None) -> Placement:
        """Return the placement where all ranks store the same entries."""
        return cls.sharded(axis, group, copies=dist.get_world_size(group))

    def __reduce__(self):
        """Pickle without the process group, which cannot be sent to another process."""
        return Placement, (self.axis, self.ranks, self.copies, None)


Placements = dict[str, Placement]  # by axis, in the order in which they were recorded


def placements_of(parameter: Tensor) -> Placements:
    """Return the placements of a parameter; {} for one that is neither sharded nor replicated."""
    return getattr(parameter, "placements", {})


def place(parameter: Tensor, *new_placements: Placement, like: Tensor | None = None) -> Tensor:
    """Record the placements of a parameter, replacing earlier ones on the same axes; returns the parameter.

    like: the parameter of which it is a shard or a copy on this rank, and which it follows on all other axes.
    They are stored as an attribute, which `copy.deepcopy` of a parameter loses.
    Raises ValueError for an axis whose group shares more than one rank with that of another axis.
    """
    placements = {**placements_of(parameter if like is None else like)}
    for new in new_placements:
        placements.pop(new.axis, None)
        for old in placements.values():
            if len(set(old.ranks) & set(new.ranks)) > 1:  # groups of two axes of a mesh have only this rank in common
                raise ValueError(
                    f"a parameter that lies on the ranks {list(old.ranks)} of {old.axis} cannot lie on the ranks "
                    f"{list(new.ranks)} of {new.axis}: two axes cross in one rank, so give each a group of its own"
                )
        placements[new.axis] = new
    parameter.placements = placements
    return parameter


def set_replicas(parameter: Tensor, group: dist.ProcessGroup) -> None:
    """Record that of dp x cp only the ranks of `group` have replicas of this parameter, as of an expert's matrix."""
    parameter.replicas = Placement.replicated("edp", group)  # a Placement, because a process group cannot be pickled


def replicas_of(parameter: Tensor, group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return the ranks of `group` that have replicas of a parameter: all of them, if `set_replicas` did not say so."""
    return parameter.replicas.group if hasattr(parameter, "replicas") else group


def by_replicas(parameters: Iterable[Tensor], group: dist.ProcessGroup) -> dict[dist.ProcessGroup, list[Tensor]]:
    """Sort parameters by the ranks of `group` that have replicas of them."""
    found: dict[dist.ProcessGroup, list[Tensor]] = {}
    for parameter in parameters:
        found.setdefault(replicas_of(parameter, group), []).append(parameter)
    return found


def axes_of(placed: Iterable[tuple[Tensor | None, Placements]]) -> list[Placement]:
    """Return one placement per axis, in the same order on all ranks: a sum over their groups reaches every entry.

    placed: gradients (None where there is none) with the placements of their parameters.
    Raises ValueError where a gradient has no placement on an axis that others have, and where the parameters lie on
    several groups of one axis.
    """
    placed, axes = list(placed), {}
    for _, placements in placed:
        for axis, placement in placements.items():
            if axes.setdefault(axis, placement).ranks != placement.ranks:
                groups = f"{list(axes[axis].ranks)} and {list(placement.ranks)}"
                raise ValueError(f"these parameters lie on two groups of {axis}, the ranks {groups}: sum each alone")
    for gradient, placements in placed:
        missing = [placement for axis, placement in axes.items() if axis not in placements]
        if gradient is not None and missing:
            raise ValueError(
                f"a parameter of shape {tuple(gradient.shape)} has no placement on the ranks "
                f"{list(missing[0].ranks)} of {missing[0].axis}, but others have one: give it with place(parameter, "
                f"Placement.replicated({missing[0].axis!r}, group)), or .sharded if each rank has a shard of its own"
            )
    return list(axes.values())
