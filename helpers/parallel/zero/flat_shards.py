"""Several tensors as one flat vector, padded with zeros so that N ranks can cut it into N equal shards.

Legend: N = ranks, n = elements of all tensors together, s = ceil(n / N) = elements of a shard. Padding: N s - n, which
is below N elements. A shard is a range of the flat vector, so it begins and ends inside tensors:

    tensors   | weight        | bias | weight           | bias |00|
    shards    | rank 0     | rank 1     | rank 2     | rank 3     |
    pieces    rank 1 has the end of the first weight, the bias and the start of the second weight

Three things are done with it: reduce-scatter whole vectors to shards, all-gather shards to a whole vector, and look at
parts of it as if they were the tensors (views: nothing is copied). Payload of either message: N s elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.parallel.shared.collectives import all_gather_flat, reduce_scatter_flat


@dataclass(frozen=True)
class ShardPiece:
    """Elements start .. stop of flattened tensor `index`; they lie at `offset` in the shard of `rank`."""

    index: int
    rank: int
    start: int
    stop: int
    offset: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


class FlatShards:
    """The layout: where each tensor lies in the flat vector, and which part of it each rank owns.

    tensors: of one dtype; only shapes, dtype and device are read, so they may be on the meta device. The layout holds
    no memory itself: `new_flat` and `new_shard` make it.
    Raises ValueError for no tensors or several dtypes or devices.
    """

    def __init__(self, tensors: Iterable[Tensor], group: dist.ProcessGroup | None = None):
        tensors = list(tensors)
        kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
        if len(kinds) != 1:
            found = ", ".join(f"{dtype} on {device}" for dtype, device in sorted(kinds, key=str)) or "no tensor at all"
            raise ValueError(f"FlatShards got {found}; a flat vector has one dtype and device: use `split_by_kind`")
        self.group = group if group is not None else dist.group.WORLD
        self.rank, self.world_size = self.group.rank(), self.group.size()
        ((self.dtype, self.device),) = kinds
        self.shapes = [tensor.shape for tensor in tensors]
        self.numels = [shape.numel() for shape in self.shapes]
        self.starts = [0, *accumulate(self.numels)][:-1]
        self.numel = sum(self.numels)  # n
        self.shard_numel = -(-self.numel // self.world_size)  # s
        self.padding = self.shard_numel * self.world_size - self.numel

    @property
    def flat_bytes(self) -> int:
        """Bytes of a whole vector in the tensors' dtype, padding included: the payload of either message."""
        return self.shard_numel * self.world_size * self.dtype.itemsize

    def new_flat(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        """(N s,) zeros."""
        return torch.zeros(self.shard_numel * self.world_size, dtype=dtype or self.dtype, device=device or self.device)

    def new_shard(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        """(s,) zeros."""
        return torch.zeros(self.shard_numel, dtype=dtype or self.dtype, device=device or self.device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """The tensors, as views into a whole vector."""
        parts = flat[: self.numel].split(self.numels)  # one split: a gradient comes back in one piece
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def view(self, flat: Tensor, index: int) -> Tensor:
        """Tensor `index`, as a view into a whole vector."""
        start = self.starts[index]
        return flat[start : start + self.numels[index]].view(self.shapes[index])

    def shard_of(self, flat: Tensor, rank: int | None = None) -> Tensor:
        """(s,) view: the part of a whole vector that belongs to a rank of the group, by default this one."""
        rank = self.rank if rank is None else rank
        return flat[rank * self.shard_numel : (rank + 1) * self.shard_numel]

    def pieces(self, rank: int | None = None) -> list[ShardPiece]:
        """What lies in the shard of `rank`, by default this one, in the order of the tensors; padding is in none."""
        rank = self.rank if rank is None else rank
        low, high = rank * self.shard_numel, (rank + 1) * self.shard_numel
        found = []
        for index, (begin, numel) in enumerate(zip(self.starts, self.numels, strict=True)):
            start, stop = max(low, begin), min(high, begin + numel)
            if start < stop:
                found.append(ShardPiece(index, rank, start - begin, stop - begin, start - low))
        return found

    @torch.no_grad()
    def pack(self, tensors: Sequence[Tensor | None], flat: Tensor) -> Tensor:
        """Copy the tensors into a whole vector, zeros for None; returns it."""
        for tensor, view in zip(tensors, self.views(flat), strict=True):
            view.zero_() if tensor is None else view.copy_(tensor)
        return flat

    def reduce_scatter(self, flat: Tensor, shard: Tensor | None = None, *, async_op: bool = False) -> dist.Work | None:
        """Sum the ranks' whole vectors; each rank gets its shard of the sum. Payload: N s elements.

        shard: where to put it; None: in place, into this rank's part of `flat`. What else is in `flat` is no longer
        meant for use.
        """
        shard, options = self.shard_of(flat) if shard is None else shard, dict(group=self.group, async_op=async_op)
        if flat.device.type == "cpu":  # the same message, but gloo is slower at its form for one tensor
            return dist.reduce_scatter(shard, list(flat.split(self.shard_numel)), **options)
        return reduce_scatter_flat(shard, flat, **options)

    def all_gather(self, flat: Tensor, shard: Tensor | None = None, *, async_op: bool = False) -> dist.Work | None:
        """Fill `flat` with all ranks' shards. shard: None means that this rank's already lies in `flat`."""
        return all_gather_flat(
            flat, self.shard_of(flat) if shard is None else shard, group=self.group, async_op=async_op
        )


def split_by_kind(tensors: Iterable[Tensor]) -> list[list[int]]:
    """Positions of `tensors`, grouped by dtype and device, each group in order: what may share a flat vector."""
    kinds: dict[tuple, list[int]] = {}
    for position, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(position)
    return list(kinds.values())


@torch.no_grad()
def flatten_parameters(parameters: Sequence[nn.Parameter], layout: FlatShards) -> Tensor:
    """Move parameters into one flat vector and make each a view of its part; returns the vector.

    The Parameter objects stay the same, so modules, tied names and hooks notice nothing. Their old storages are freed.
    """
    flat = layout.pack([parameter.detach() for parameter in parameters], layout.new_flat())
    for parameter, view in zip(parameters, layout.views(flat), strict=True):
        parameter.data = view
    return flat
