"""Provides on each rank the process groups of a mesh, for the tasks of lab 09."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

# The group of all ranks of a world -> the ranks of a group -> the group. Worlds of other sizes have other groups.
_created: dict[dist.ProcessGroup, dict[tuple[int, ...], dist.ProcessGroup]] = {}


def process_groups(inputs: dict[str, Any]) -> dict[str, dist.ProcessGroup]:
    """This rank's process group on each axis, and on "ends" if its stage is the first or the last.

    All ranks have to create all groups in one order. Those of every mesh are therefore created at the first call,
    before an answer that fails can stop a rank between two of them.
    """
    if (world := dist.group.WORLD) not in _created:
        _created[world] = {tuple(ranks): dist.new_group(ranks) for ranks in inputs["all_groups"]}
    return {axis: _created[world][tuple(ranks)] for axis, ranks in inputs["groups"].items()}
