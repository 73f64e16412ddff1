"""How a parameter lies on the ranks, axis by axis: what adds numbers up over ranks asks this and nothing else.

    tp   a column of a matrix   sharded      each rank of the group has entries of its own
         a norm's weight        replicated   all N ranks have the same entries
         one head for 2 ranks   between      2 copies of each entry
    pp   a stage's weight       sharded      a tied one has as many copies as stages use it
    dp   a piece of ZeRO's      sharded      it keeps the other axes of its parameter
Whoever cuts a parameter, or hands it out, says so with `place`. The average over data-parallel copies (DDP) needs no
word: each rank has the mean and goes on alone. (Attributes of a parameter do not survive `copy.deepcopy`.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Placement:
    """On one axis, whose group has these (global) ranks: each entry of the parameter lies on `copies` of them."""

    axis: str
    ranks: tuple[int, ...]
    copies: int
    group: dist.ProcessGroup | None = field(compare=False, repr=False)

    @classmethod
    def sharded(cls, axis: str, group: dist.ProcessGroup | None, *, copies: int = 1) -> Placement:
        """Each rank has entries of its own; with copies, as many ranks share them."""
        group = group if group is not None else dist.group.WORLD
        return cls(axis, tuple(dist.get_process_group_ranks(group)), copies, group)

    @classmethod
    def replicated(cls, axis: str, group: dist.ProcessGroup | None) -> Placement:
        """All ranks have the same entries."""
        return cls.sharded(axis, group, copies=dist.get_world_size(group))

    def __reduce__(self):
        """A group does not travel to another process; what it says does."""
        return Placement, (self.axis, self.ranks, self.copies, None)


Placements = dict[str, Placement]  # by axis, in the order in which they were said


def placements_of(parameter: Tensor) -> Placements:
    """What was said of a parameter; {} for one that nobody cut or handed out."""
    return getattr(parameter, "placements", {})


def place(parameter: Tensor, *said: Placement, like: Tensor | None = None) -> Tensor:
    """Say of a parameter how it lies on some axes; what was said of these before is forgotten. Returns it.

    like: the parameter of which it is a part, or a copy on this rank: it lies on the other axes as that does.
    Raises ValueError for an axis whose group shares more than one rank with that of another axis.
    """
    placements = {**placements_of(parameter if like is None else like)}
    for new in said:
        placements.pop(new.axis, None)
        for old in placements.values():
            if len(set(old.ranks) & set(new.ranks)) > 1:
                raise ValueError(
                    f"a parameter that lies on the ranks {list(old.ranks)} of {old.axis} cannot lie on the ranks "
                    f"{list(new.ranks)} of {new.axis}: two axes cross in one rank, so give each a group of its own"
                )
        placements[new.axis] = new
    parameter.placements = placements
    return parameter


def axes_of(placed: Iterable[tuple[Tensor | None, Placements]]) -> list[Placement]:
    """One placement for each axis, in one order on all ranks: over their groups a sum must go to meet every entry.

    placed: gradients, None for what has none, with the placements of their parameters.
    Raises ValueError for a gradient of which an axis is not known that others lie on, and for axes of several groups.
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
                f"nobody said how a parameter of shape {tuple(gradient.shape)} lies on the ranks "
                f"{list(missing[0].ranks)} of {missing[0].axis}, on which others lie: say it with place(parameter, "
                f"Placement.replicated({missing[0].axis!r}, group)), or .sharded if each rank has a part of its own"
            )
    return list(axes.values())
