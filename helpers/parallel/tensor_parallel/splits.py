"""Says which part of a tensor each rank stores (Split), shards parameters by it, and gathers full tensors again.

A `Split` is plain data: for one dimension of a tensor, the ranges that each rank stores. Legend: N = ranks.

    even         0 1 2 | 3 4 5             rank r stores n / N neighbouring entries; of attention, full heads
    fused        q k v: 0 1|2 3, 4 5|6 7   each of several matrices that lie in one is split by itself
    replicated   0 1 | 0 1 | 2 3 | 2 3     fewer key and value heads than ranks: neighbours store the same head
    padded       0 1 2 | 3 4 .             the vocabulary: zeros fill the last shards

Each sharded parameter also gets a placement that says how many ranks store the same entries: 1 for a shard, N where the
parameter is replicated, and a number between for key and value heads that are fewer than ranks. What adds up over
ranks, such as the global norm, divides by this number (shared/placement.py). Used by layers.py and shard.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.parallel.shared.placement import Placement, place, placements_of
from helpers.parallel.tensor_parallel.conjugate import identity_all_reduce

AXIS = "tp"  # the name of tensor parallelism's axis in placements
Range = tuple[int, int]  # start and stop


@dataclass(frozen=True)
class Split:
    """How one dimension of a tensor is split over the ranks.

    Every shard has the same length; where a rank's ranges are shorter, zeros follow. The field names are keys of a
    checkpoint's manifest.
    """

    dim: int  # the dimension that is split
    whole: int  # the length of the full tensor along it
    length: int  # the length of each shard along it
    ranges: tuple[tuple[Range, ...], ...]  # for each rank, the ranges of the full tensor that it stores
    copies: int = 1  # how many ranks store each entry
    axis: str = AXIS  # the mesh's axis whose ranks have the shards: tp, or ep for the experts of a layer

    def take(self, tensor: Tensor, rank: int) -> Tensor:
        """Return rank `rank`'s shard of a full tensor, in new memory. Raises ValueError for another size."""
        if tensor.shape[self.dim] != self.whole:
            raise ValueError(
                f"this split is for {self.whole} entries, but dimension {self.dim} of {tuple(tensor.shape)} has "
                f"{tensor.shape[self.dim]}: the sizes of a fused layer's matrices must add up to it"
            )
        parts = [tensor.narrow(self.dim, start, stop - start) for start, stop in self.ranges[rank]]
        missing = self.length - self.num_entries(rank)
        shape = [missing if dim == self.dim else size for dim, size in enumerate(tensor.shape)]
        return torch.cat([*parts, tensor.new_zeros(shape)], self.dim)

    def join(self, shards: Sequence[Tensor]) -> Tensor:
        """Return the full tensor from the shards of all ranks; padding is left out."""
        shape = [self.whole if dim == self.dim else size for dim, size in enumerate(shards[0].shape)]
        full = shards[0].new_empty(shape)
        for shard, ranges in zip(shards, self.ranges, strict=True):
            offset = 0
            for start, stop in ranges:
                full.narrow(self.dim, start, stop - start).copy_(shard.narrow(self.dim, offset, stop - start))
                offset += stop - start
        return full

    def num_entries(self, rank: int) -> int:
        """Return how many entries of `rank`'s shard are not padding."""
        return sum(stop - start for start, stop in self.ranges[rank])


def even_split(whole: int, num_ranks: int, *, dim: int = 0, unit: int = 1, what: str = "the layer") -> Split:
    """Split `whole` entries into N equal shards of full units, such as heads of `unit` entries.

    what: the name of the layer for the error. Raises ValueError with the nearest sizes that work.
    """
    _check_divides(whole, num_ranks, unit, what)
    share = whole // num_ranks
    return Split(dim, whole, share, tuple(((rank * share, (rank + 1) * share),) for rank in range(num_ranks)))


def fused_split(sizes: Sequence[int], num_ranks: int, *, dim: int = 0, unit: int = 1, what: str = "the layer") -> Split:
    """Split each of several fused matrices, of `sizes`, evenly, so that a rank's shards belong to the same heads."""
    ranges: list[tuple[Range, ...]] = [()] * num_ranks  # each rank gets one range of each matrix
    start = 0  # of the present matrix in the fused one
    for size in sizes:
        _check_divides(size, num_ranks, unit, what)
        share = size // num_ranks
        firsts = [start + rank * share for rank in range(num_ranks)]
        ranges = [(*earlier, (first, first + share)) for earlier, first in zip(ranges, firsts, strict=True)]
        start += size
    return Split(dim, start, start // num_ranks, tuple(ranges))


def heads_split(whole: int, num_ranks: int, head_size: int, *, dim: int = 0, what: str = "the layer") -> Split:
    """Give each rank full heads; with fewer heads than ranks, neighbouring ranks store the same head.

    Raises ValueError where neither of the two numbers divides the other.
    """
    num_heads = whole // head_size
    if num_heads >= num_ranks or num_ranks % num_heads:  # in the second case even_split raises the error
        return even_split(whole, num_ranks, dim=dim, unit=head_size, what=what)
    copies = num_ranks // num_heads
    starts = [rank // copies * head_size for rank in range(num_ranks)]  # `copies` neighbours have the same start
    return Split(dim, whole, head_size, tuple(((start, start + head_size),) for start in starts), copies)


def padded_split(whole: int, num_ranks: int, *, dim: int = 0) -> Split:
    """Split n = `whole` entries into N shards of ceil(n / N); the last shards end with zeros where n is too small."""
    share = -(-whole // num_ranks)  # rounded up
    edges = [min(rank * share, whole) for rank in range(num_ranks + 1)]
    return Split(dim, whole, share, tuple(((a, b),) for a, b in zip(edges[:-1], edges[1:], strict=True)))


def _check_divides(whole: int, num_ranks: int, unit: int, what: str) -> None:
    """Raise ValueError unless every rank can get the same number of full units, at least one."""
    step = num_ranks * unit
    if whole % step == 0 and whole:
        return
    if unit > 1:
        heads, below = whole // unit, whole // step * num_ranks
        near = f"{below} or {below + num_ranks}" if below else f"{num_ranks}"
        raise ValueError(
            f"{what} has {heads} heads of {unit}, which {num_ranks} ranks cannot share: a head stays whole. "
            f"The nearest numbers of heads that work are {near}; or take a number of ranks that divides {heads}"
        )
    below = whole // step * step
    near = f"{below} or {below + step}" if below else f"{step}"
    raise ValueError(
        f"{what} has a size of {whole}, which {num_ranks} ranks cannot share equally. The nearest sizes that work are "
        f"{near}; or take a number of ranks that divides {whole}"
    )


def shard_parameter(parameter: nn.Parameter, split: Split, group: dist.ProcessGroup | None) -> nn.Parameter:
    """Return this rank's shard as a new parameter, with its placement."""
    with torch.no_grad():
        shard = nn.Parameter(split.take(parameter, dist.get_rank(group)), parameter.requires_grad)
    return place(shard, Placement.sharded(AXIS, group, copies=split.copies), like=parameter)


def sum_gradient_over_replicas(shard: Tensor | None, split: Split, group: dist.ProcessGroup | None) -> Tensor | None:
    """Return `shard` itself; in backward its gradient becomes the sum over the ranks that store the same entries.

    Forward sends nothing. If entries are replicated, backward all-reduces a full tensor, in which a rank has zeros for
    the entries that it does not store. None stays None.
    """
    if shard is None or split.copies == 1:
        return shard
    # one range, because only heads_split replicates entries
    ((start, stop),) = split.ranges[dist.get_rank(group)]
    edges = [0, 0] * (shard.dim() - 1) + [start, split.whole - stop]  # F.pad begins with the last dimension
    return identity_all_reduce(F.pad(shard, edges), group).narrow(0, start, stop - start)


def restore_tied_parameters(model: nn.Module, pairs: Iterable[tuple[nn.Module, nn.Module]]) -> None:
    """Let modules that shared a parameter before sharding share its shard.

    pairs: modules of `model`, each with the module that replaces it. Raises ValueError where the replacements split the
    parameter differently, or where one of the modules that share it is not replaced.
    """
    pairs, shards = list(pairs), {}  # shards: full parameter -> its first shard, with that shard's split
    for old, new in pairs:
        for name, parameter in old.named_parameters(recurse=False):
            shard, split = getattr(new, name), getattr(new, "splits", {}).get(name)
            first, first_split = shards.setdefault(parameter, (shard, split))
            if first_split != split:
                raise ValueError(_different_splits_message(model, parameter))
            setattr(new, name, first)
    replaced = {old for old, _ in pairs}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if module not in replaced and shards.get(parameter, (parameter,))[0] is not parameter:
                raise ValueError(_different_splits_message(model, parameter))


def _different_splits_message(model: nn.Module, parameter: nn.Parameter) -> str:
    owners = [name for name, other in model.named_parameters(remove_duplicate=False) if other is parameter]
    return (
        f"{' and '.join(owners)} are one parameter, but the plan shards them in different ways: give both the same word"
    )


def place_unsharded_parameters(model: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Record that every parameter without a split is replicated on all N ranks."""
    for parameter in model.parameters():
        if AXIS not in placements_of(parameter):
            place(parameter, Placement.replicated(AXIS, group))


@torch.no_grad()
def gather_full_tensor(shard: Tensor, split: Split, group: dist.ProcessGroup | None) -> Tensor:
    """Return the full tensor on every rank, by an all-gather of the shards."""
    shards = [torch.empty_like(shard) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, shard.contiguous(), group=group)
    return split.join(shards)


@torch.no_grad()
def gather_full_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of the model before sharding, with full tensors, on every rank.

    It sends one all-gather for each sharded parameter (a tied one is gathered once), so every rank must call it.
    """
    state, gathered = {}, {}
    for name, tensor in model.state_dict().items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        split = getattr(module, "splits", {}).get(leaf)  # sharded modules have `splits`: a Split by parameter name
        key = tensor.data_ptr() if tensor.numel() else name  # tied tensors have one address; empty ones have none
        if split is not None and key not in gathered:
            gathered[key] = gather_full_tensor(tensor, split, module.group)
        state[name] = tensor.clone() if split is None else gathered[key]
    return state
