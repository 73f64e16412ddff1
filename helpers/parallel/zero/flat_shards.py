"""Lays several tensors out as one flat vector, padded with zeros so that it can be split into N equal shards.

Every stage of ZeRO uses it. Legend: N = ranks, n = elements of all tensors together, s = ceil(n / N) = elements of a
shard. The padding, N s - n, is below N elements. A shard is a range of the flat vector, so it begins and ends inside
tensors:

    tensors   | weight        | bias | weight           | bias |00|
    shards    | rank 0     | rank 1     | rank 2     | rank 3     |
    pieces    rank 1 has the end of the first weight, the bias and the start of the second weight

FlatShards reduce-scatters full vectors to shards, all-gathers shards to a full vector, and gives views of a full vector
as the tensors, without a copy. The payload of either message is N s elements.
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
    """A part of one tensor that lies in one rank's shard."""

    index: int  # of the tensor in the flat vector
    rank: int  # of the group, whose shard it is
    start: int  # the first element, in the flattened tensor
    stop: int  # the element after the last
    offset: int  # where it begins in the shard

    @property
    def numel(self) -> int:
        return self.stop - self.start


class FlatShards:
    """The layout of a flat vector: where each tensor lies, and which shard each rank owns.

    tensors: of one dtype; only shapes, dtype and device are read, so they may be on the meta device. The layout has no
    memory itself; `new_flat` and `new_shard` allocate it.
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
        self.starts = [0, *accumulate(self.numels)][:-1]  # of each tensor in the flat vector
        self.numel = sum(self.numels)  # n
        self.shard_numel = -(-self.numel // self.world_size)  # s = n / N, rounded up
        self.padding = self.shard_numel * self.world_size - self.numel

    def new_flat(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        """Return a full vector of zeros, (N s,)."""
        return torch.zeros(self.shard_numel * self.world_size, dtype=dtype or self.dtype, device=device or self.device)

    def new_shard(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        """Return a shard of zeros, (s,)."""
        return torch.zeros(self.shard_numel, dtype=dtype or self.dtype, device=device or self.device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the tensors as views of a full vector."""
        parts = flat[: self.numel].split(self.numels)  # one operation, so its backward makes one flat gradient
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def view(self, flat: Tensor, index: int) -> Tensor:
        """Return tensor `index` as a view of a full vector."""
        start = self.starts[index]
        return flat[start : start + self.numels[index]].view(self.shapes[index])

    def shard_of(self, flat: Tensor, rank: int | None = None) -> Tensor:
        """Return a view (s,) of a full vector: the shard of a rank of the group, by default this one."""
        rank = self.rank if rank is None else rank
        return flat[rank * self.shard_numel : (rank + 1) * self.shard_numel]

    def pieces(self, rank: int | None = None) -> list[ShardPiece]:
        """List the pieces of tensors in the shard of `rank`, by default this one, without the padding."""
        rank = self.rank if rank is None else rank
        low, high = rank * self.shard_numel, (rank + 1) * self.shard_numel  # of the shard in the flat vector
        pieces = []
        for index, (begin, numel) in enumerate(zip(self.starts, self.numels, strict=True)):
            start, stop = max(low, begin), min(high, begin + numel)
            if start < stop:
                pieces.append(ShardPiece(index, rank, start - begin, stop - begin, start - low))
        return pieces

    @torch.no_grad()
    def pack(self, tensors: Sequence[Tensor | None], flat: Tensor) -> Tensor:
        """Copy the tensors into a full vector, zeros for None, and return it."""
        for tensor, view in zip(tensors, self.views(flat), strict=True):
            view.zero_() if tensor is None else view.copy_(tensor)
        return flat

    def reduce_scatter(self, flat: Tensor, shard: Tensor | None = None, *, async_op: bool = False) -> dist.Work | None:
        """Sum the ranks' full vectors; each rank gets its shard of the sum. Payload: N s elements.

        shard: where to write the result. By default it goes into this rank's part of `flat`, and the rest of `flat` is
        undefined afterwards.
        """
        shard, options = self.shard_of(flat) if shard is None else shard, dict(group=self.group, async_op=async_op)
        if flat.device.type == "cpu":  # gloo sends the same message faster from a list than from one tensor
            return dist.reduce_scatter(shard, list(flat.split(self.shard_numel)), **options)
        return reduce_scatter_flat(shard, flat, **options)

    def all_gather(self, flat: Tensor, shard: Tensor | None = None, *, async_op: bool = False) -> dist.Work | None:
        """Fill `flat` with all ranks' shards. Without `shard`, this rank's shard must already lie in `flat`."""
        shard = self.shard_of(flat) if shard is None else shard
        return all_gather_flat(flat, shard, group=self.group, async_op=async_op)


@torch.no_grad()
def flatten_parameters(parameters: Sequence[nn.Parameter], layout: FlatShards) -> Tensor:
    """Move parameters into one flat vector, make each a view of its part, and return the vector.

    The Parameter objects stay the same, so modules, tied names and hooks still work. Their old storages are freed.
    """
    flat = layout.pack([parameter.detach() for parameter in parameters], layout.new_flat())
    for parameter, view in zip(parameters, layout.views(flat), strict=True):
        parameter.data = view
    return flat
