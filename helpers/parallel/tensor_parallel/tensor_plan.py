"""Which part of a tensor each rank holds, and which module of a model is cut in which way.

Legend: N = ranks. A `Cut` is plain data: for one dimension of a tensor, the ranges that each rank holds.

    even           0 1 2 | 3 4 5             rank r has n / N neighbours; with units, whole heads of them
    fused          q k v: 0 1|2 3, 4 5|6 7   each of several matrices that lie in one is cut by itself
    copied         0 1 | 0 1 | 2 3 | 2 3     fewer key and value heads than ranks: neighbours hold the same one
    padded         0 1 2 | 3 4 .             the vocabulary: zeros fill the last parts

A plan is a dict from names of modules to words: {"blocks.*.attention.{query,key,value}": "column"}. In a name * stands
for anything, [02] for one of the characters and {a,b} for either; layers named together in braces read one input.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

KINDS = {  # the words of a plan, and the modules each can cut
    "column": (nn.Linear,),
    "row": (nn.Linear,),
    "fused_qkv": (nn.Linear,),
    "vocabulary": (nn.Embedding, nn.Linear),
    "sequence": (nn.LayerNorm, nn.Dropout, nn.Embedding),
    "heads": (nn.Module,),  # an attention with `head_size`: its layers are cut by whole heads
    "whole": (nn.Module,),  # left as it is
}
WORDS = ", ".join(KINDS)
Range = tuple[int, int]


@dataclass(frozen=True)
class Cut:
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


def even_cut(whole: int, num_ranks: int, *, dim: int = 0, unit: int = 1, what: str = "the layer") -> Cut:
    """N equal parts made of whole units, such as heads. Raises ValueError with the nearest sizes that work."""
    _check_divides(whole, num_ranks, unit, what)
    share = whole // num_ranks
    return Cut(dim, whole, share, tuple(((rank * share, (rank + 1) * share),) for rank in range(num_ranks)))


def fused_cut(sizes: Sequence[int], num_ranks: int, *, dim: int = 0, unit: int = 1, what: str = "the layer") -> Cut:
    """Several matrices in one, of `sizes`: each is cut evenly, so that a rank's parts belong to the same heads."""
    ranges: list[tuple[Range, ...]] = [()] * num_ranks
    start = 0
    for size in sizes:
        _check_divides(size, num_ranks, unit, what)
        share = size // num_ranks
        firsts = [start + rank * share for rank in range(num_ranks)]
        ranges = [(*mine, (first, first + share)) for mine, first in zip(ranges, firsts, strict=True)]
        start += size
    return Cut(dim, start, start // num_ranks, tuple(ranges))


def heads_cut(whole: int, num_ranks: int, head_size: int, *, dim: int = 0, what: str = "the layer") -> Cut:
    """Whole heads for each rank; with fewer heads than ranks, neighbours hold copies of one.

    Raises ValueError where neither of the two numbers divides the other.
    """
    num_heads = whole // head_size
    if num_heads >= num_ranks or num_ranks % num_heads:
        return even_cut(whole, num_ranks, dim=dim, unit=head_size, what=what)
    copies = num_ranks // num_heads
    starts = [rank // copies * head_size for rank in range(num_ranks)]
    return Cut(dim, whole, head_size, tuple(((start, start + head_size),) for start in starts), copies)


def padded_cut(whole: int, num_ranks: int, *, dim: int = 0) -> Cut:
    """N parts of ceil(n / N) entries; where they reach beyond the end, the last ones hold zeros."""
    share = -(-whole // num_ranks)
    edges = [min(rank * share, whole) for rank in range(num_ranks + 1)]
    return Cut(dim, whole, share, tuple(((a, b),) for a, b in zip(edges[:-1], edges[1:], strict=True)))


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


@dataclass(frozen=True)
class Entry:
    """A module to be cut: its name, the module it stands in, its word, and those that read the same input."""

    name: str
    parent: nn.Module
    module: nn.Module
    word: str
    together: tuple[str, ...] = ()

    @property
    def attribute(self) -> str:
        return self.name.rpartition(".")[2]

    def cut(self, num_ranks: int) -> Cut | None:
        """How its matrix is cut; None for what is no matrix. Raises ValueError where the ranks cannot share it."""
        head_size, module = getattr(self.parent, "head_size", None), self.module
        if self.word == "column" and head_size:
            return heads_cut(module.out_features, num_ranks, head_size, what=self.name)
        if self.word == "column":
            return even_cut(module.out_features, num_ranks, what=self.name)
        if self.word == "fused_qkv":
            return fused_cut([module.out_features // 3] * 3, num_ranks, unit=head_size or 1, what=self.name)
        if self.word == "row":
            return even_cut(module.in_features, num_ranks, dim=1, unit=head_size or 1, what=self.name)
        return padded_cut(module.weight.shape[0], num_ranks) if self.word == "vocabulary" else None


def resolve_plan(model: nn.Module, plan: Mapping[str, str]) -> list[Entry]:
    """The modules that `plan` names, in the model's order; where several entries name one, the last one counts.

    Raises ValueError for an unknown word, and for an entry that names nothing, with the closest names there are.
    """
    modules = dict(model.named_modules())
    found: dict[str, Entry] = {}
    for pattern, word in plan.items():
        if word not in KINDS:
            raise ValueError(f"the plan says {word!r} for {pattern!r}; it knows {WORDS}")
        for single in _alternatives(pattern):
            names = [name for name in modules if name and fnmatchcase(name, single)]
            if not names:
                raise ValueError(_no_such_module(single, list(modules)[1:]))
            together = tuple(name.rpartition(".")[2] for name in _alternatives(pattern)) if "{" in pattern else ()
            for name in names:
                if not isinstance(modules[name], KINDS[word]):
                    kinds = " or ".join(kind.__name__ for kind in KINDS[word])
                    raise ValueError(f"{word!r} cuts a {kinds}, but {name} is a {type(modules[name]).__name__}")
                parent = modules[name.rpartition(".")[0]]
                found[name] = Entry(name, parent, modules[name], word, together)
    return [found[name] for name in modules if name in found and found[name].word != "whole"]


def _alternatives(pattern: str) -> Iterator[str]:
    """a.{b,c} as a.b and a.c."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        yield pattern
        return
    for choice in braces[1].split(","):
        yield from _alternatives(pattern[: braces.start()] + choice.strip() + pattern[braces.end() :])


def _no_such_module(pattern: str, names: Sequence[str]) -> str:
    """With the closest names, in which numbers count as *, so that one name stands for all blocks."""
    general = list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in names))
    close = difflib.get_close_matches(pattern, [*general, *names], n=3, cutoff=0.4) or general[:3]
    return f"the plan names {pattern!r}, but the model has no such module; the closest are {', '.join(close)}"
