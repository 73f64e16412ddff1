"""Says which part of a tensor each rank stores (Split), shards parameters by it, and gathers full tensors again.

Legend: N = ranks of the group. A `Split` is plain data: for one dimension of a tensor, the ranges that each rank stores.

    even         0 1 2 | 3 4 5             rank r stores n / N neighbours; with units, full heads of them
    fused        q k v: 0 1|2 3, 4 5|6 7   each of several matrices that lie in one is split by itself
    replicated   0 1 | 0 1 | 2 3 | 2 3     fewer key and value heads than ranks: neighbours store the same head
    padded       0 1 2 | 3 4 .             the vocabulary: zeros fill the last shards

Each sharded parameter also gets a placement that says how many ranks store the same entries: 1 for a shard, N where the
parameter is replicated, and a number between for key and value heads that are fewer than ranks. What adds up over
ranks, such as the global norm, divides by this number (shared/placement.py). layers.py and shard.py use these functions.
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

Range = tuple[int, int]


@dataclass(frozen=True)
class Split:
    """Dimension `dim`, of `whole` entries: `ranges[r]` are rank r's, start and stop; its shard has `length` entries.

    Where a rank's ranges are shorter than `length`, zeros follow. copies: how many ranks hold each entry.
    """

    dim: int
    whole: int
    length: int
    ranges: tuple[tuple[Range, ...], ...]
    copies: int = 1

    def take(self, tensor: Tensor, rank: int) -> Tensor:
        """Rank `rank`'s part of a whole tensor, in memory of its own. Raises ValueError for one of another size."""
        if tensor.shape[self.dim] != self.whole:
            raise ValueError(
                f"this cut is for {self.whole} entries, but dimension {self.dim} of {tuple(tensor.shape)} has "
                f"{tensor.shape[self.dim]}: the sizes of a fused layer's matrices must add up to it"
            )
        parts = [tensor.narrow(self.dim, start, stop - start) for start, stop in self.ranges[rank]]
        missing = self.length - self.owned(rank)
        shape = [missing if dim == self.dim else size for dim, size in enumerate(tensor.shape)]
        return torch.cat([*parts, tensor.new_zeros(shape)], self.dim)

    def join(self, shards: Sequence[Tensor]) -> Tensor:
        """The whole tensor, from the shards of all ranks; padding is left out."""
        shape = [self.whole if dim == self.dim else size for dim, size in enumerate(shards[0].shape)]
        whole = shards[0].new_empty(shape)
        for shard, ranges in zip(shards, self.ranges, strict=True):
            place = 0
            for start, stop in ranges:
                whole.narrow(self.dim, start, stop - start).copy_(shard.narrow(self.dim, place, stop - start))
                place += stop - start
        return whole

    def owned(self, rank: int) -> int:
        """Entries of `rank`'s shard that are no padding."""
        return sum(stop - start for start, stop in self.ranges[rank])


def even_split(whole: int, num_ranks: int, *, dim: int = 0, unit: int = 1, what: str = "the layer") -> Split:
    """N equal parts made of whole units, such as heads. Raises ValueError with the nearest sizes that work."""
    _check_divides(whole, num_ranks, unit, what)
    share = whole // num_ranks
    return Split(dim, whole, share, tuple(((rank * share, (rank + 1) * share),) for rank in range(num_ranks)))


def fused_split(sizes: Sequence[int], num_ranks: int, *, dim: int = 0, unit: int = 1, what: str = "the layer") -> Split:
    """Several matrices in one, of `sizes`: each is cut evenly, so that a rank's parts belong to the same heads."""
    ranges: list[tuple[Range, ...]] = [()] * num_ranks
    start = 0
    for size in sizes:
        _check_divides(size, num_ranks, unit, what)
        share = size // num_ranks
        firsts = [start + rank * share for rank in range(num_ranks)]
        ranges = [(*mine, (first, first + share)) for mine, first in zip(ranges, firsts, strict=True)]
        start += size
    return Split(dim, start, start // num_ranks, tuple(ranges))


def heads_split(whole: int, num_ranks: int, head_size: int, *, dim: int = 0, what: str = "the layer") -> Split:
    """Whole heads for each rank; with fewer heads than ranks, neighbours hold copies of one.

    Raises ValueError where neither of the two numbers divides the other.
    """
    num_heads = whole // head_size
    if num_heads >= num_ranks or num_ranks % num_heads:
        return even_split(whole, num_ranks, dim=dim, unit=head_size, what=what)
    copies = num_ranks // num_heads
    starts = [rank // copies * head_size for rank in range(num_ranks)]
    return Split(dim, whole, head_size, tuple(((start, start + head_size),) for start in starts), copies)


def padded_split(whole: int, num_ranks: int, *, dim: int = 0) -> Split:
    """N parts of ceil(n / N) entries; where they reach beyond the end, the last ones hold zeros."""
    share = -(-whole // num_ranks)
    edges = [min(rank * share, whole) for rank in range(num_ranks + 1)]
    return Split(dim, whole, share, tuple(((a, b),) for a, b in zip(edges[:-1], edges[1:], strict=True)))


def _check_divides(whole: int, num_ranks: int, unit: int, what: str) -> None:
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


AXIS = "tp"


def shard_parameter(parameter: nn.Parameter, cut: Split, group: dist.ProcessGroup | None) -> nn.Parameter:
    """This rank's part, as a parameter of its own."""
    with torch.no_grad():
        shard = nn.Parameter(cut.take(parameter, dist.get_rank(group)), parameter.requires_grad)
    return place(shard, Placement.sharded(AXIS, group, copies=cut.copies), like=parameter)


def sum_gradient_over_replicas(part: Tensor | None, cut: Split, group: dist.ProcessGroup | None) -> Tensor | None:
    """`part` itself; its gradient becomes the sum over the ranks that hold the same. None stays None.

    Forward: nothing. Backward, if there are copies: all-reduce of the whole tensor, zeros where a rank holds nothing.
    """
    if part is None or cut.copies == 1:
        return part
    ((start, stop),) = cut.ranges[dist.get_rank(group)]
    edges = [0, 0] * (part.dim() - 1) + [start, cut.whole - stop]  # F.pad begins with the last dimension
    return identity_all_reduce(F.pad(part, edges), group).narrow(0, start, stop - start)


def restore_tied_parameters(model: nn.Module, pairs: Iterable[tuple[nn.Module, nn.Module]]) -> None:
    """Let two modules that shared a parameter share its part. pairs: the modules of `model`, and what replaces each.

    Raises ValueError where the new ones do not cut it alike, or one of the owners is not replaced.
    """
    pairs, parts = list(pairs), {}
    for old, new in pairs:
        for name, parameter in old.named_parameters(recurse=False):
            part, cut = getattr(new, name), getattr(new, "splits", {}).get(name)
            known, known_cut = parts.setdefault(parameter, (part, cut))
            if known_cut != cut:
                raise ValueError(_torn(model, parameter))
            setattr(new, name, known)
    replaced = {old for old, _ in pairs}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if module not in replaced and parts.get(parameter, (parameter,))[0] is not parameter:
                raise ValueError(_torn(model, parameter))


def _torn(model: nn.Module, parameter: nn.Parameter) -> str:
    owners = [name for name, other in model.named_parameters(remove_duplicate=False) if other is parameter]
    return (
        f"{' and '.join(owners)} are one parameter, but the plan cuts them in different ways: give both the same word"
    )


def place_unsharded_parameters(model: nn.Module, group: dist.ProcessGroup | None) -> None:
    """What is no part is whole on all N ranks."""
    for parameter in model.parameters():
        if AXIS not in placements_of(parameter):
            place(parameter, Placement.replicated(AXIS, group))


@torch.no_grad()
def gather_full_tensor(part: Tensor, cut: Split, group: dist.ProcessGroup | None) -> Tensor:
    """The whole tensor on every rank, by an all-gather of the parts that `cut` made."""
    shards = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shards, part.contiguous(), group=group)
    return cut.join(shards)


@torch.no_grad()
def gather_full_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the model before it was cut: names, order and shapes; whole tensors, on every rank.

    Sends an all-gather for each cut parameter; every rank must call it. A tied tensor is gathered once.
    """
    state, gathered = {}, {}
    for name, tensor in model.state_dict().items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        cut = getattr(module, "splits", {}).get(leaf)
        place = tensor.data_ptr() if tensor.numel() else name
        if cut is not None and place not in gathered:
            gathered[place] = gather_full_tensor(tensor, cut, module.group)
        state[name] = tensor.clone() if cut is None else gathered[place]
    return state
