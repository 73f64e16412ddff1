"""Shows one layer split over the ranks of a tensor-parallel group, with numbers that are small enough to add up by eye.

A layer has up to three passes: forward, the gradient of its input, and the gradients of its weights. `split("mlp", 2)`
gives each pass as rows of matrices and operators, such as X · A ReLU G · B = Z, once for one process and once for each
of 2 ranks, with the collectives between them; the tensor-split explorer draws them. EQUATIONS has the passes as texts.
The numbers are those of a run: tools/record_explorers.py ran helpers/parallel/tensor_parallel on live ranks and wrote
tensor_split.json. `seconds` and `flops` say what a pass costs in a layer of real size.

dX is the gradient of X. The MLP's activation is ReLU, which keeps whole numbers whole; what holds for it holds for
GeLU, because both act element by element. Each head of attention has one column.
Sources: Shoeybi et al. 2019 (Megatron-LM), section 3, for the splits; Korthikanti et al. 2022, section 4.2.2, for
sequence parallelism: instead of an all-reduce, a reduce-scatter after the layer and an all-gather before the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from helpers.quantities import costs
from helpers.specs import Link

Matrix = Sequence[Sequence[float]]

FORWARD, INPUTS, WEIGHTS = "forward", "backward: inputs", "backward: weights"
RANKS = (2, 4)  # the group sizes that divide tokens, inner width, heads and vocabulary
VOCABULARY = 128_256  # of a head of real size: Llama 3's
SUBSCRIPTS = "₀₁₂₃"  # the rank in the name of its shard: A₁ is rank 1's part of A; there are at most 4 ranks
RECORDED = Path(__file__).with_name("tensor_split.json")

# Each pass of a layer from left to right. A matrix stands with a colon and with how the ranks share it:
#   columns, rows    each rank has a shard
#   tokens, kept     every rank has all of it; with sequence parallelism each rank has its tokens (rows), so an
#                    all-gather comes first, or for "kept" came first in the pass before
#   sum              each rank has a partial sum; a collective adds them, and is a reduce-scatter with sequence
#                    parallelism
#   total, max       each rank has fp32 numbers of each token; an all-reduce joins them
#   every            every rank has it, however tokens are shared
# Everything else is an operator or a function; in it and in names an underscore stands for a space, and _ for a gap.
# An embedding's input I, its tokens as one-hot rows, has no gradient.
EQUATIONS = {
    "mlp": {
        FORWARD: "X:tokens · A:columns ReLU G:columns · B:rows = Z:sum",
        INPUTS: "dZ:tokens · Bᵀ:columns ReLU′ dU:columns · Aᵀ:rows = dX:sum",
        WEIGHTS: "Xᵀ:tokens · dU:columns = dA:columns _ Gᵀ:rows · dZ:kept = dB:rows",
    },
    "columns": {
        FORWARD: "X:tokens · A:columns = Y:columns",
        INPUTS: "dY:columns · Aᵀ:rows = dX:sum",
        WEIGHTS: "Xᵀ:tokens · dY:columns = dA:columns",
    },
    "rows": {
        FORWARD: "G:columns · B:rows = Z:sum",
        INPUTS: "dZ:tokens · Bᵀ:columns = dG:columns",
        WEIGHTS: "Gᵀ:rows · dZ:kept = dB:rows",
    },
    "attention": {
        FORWARD: "X:tokens · Wq:columns Wk:columns Wv:columns attend O:columns · Wo:rows = Z:sum",
        INPUTS: "dZ:tokens · Woᵀ:columns attend′ dQ:columns dK:columns dV:columns ·_Wᵀ_= dX:sum",
        WEIGHTS: "Xᵀ:tokens ·_dQ_dK_dV_= dWq:columns dWk:columns dWv:columns _ Oᵀ_·_dZ_= dWo:rows",
    },
    "embedding": {
        FORWARD: "I:columns · E:rows = X:sum",
        WEIGHTS: "Iᵀ:rows · dX:tokens = dE:rows",
    },
    "head": {
        FORWARD: "X:tokens · W:columns = L:columns → m:max → s_t:total → loss:every",
        INPUTS: "dL:columns · Wᵀ:rows = dX:sum",
        WEIGHTS: "Xᵀ:tokens · dL:columns = dW:columns",
    },
}
CUTS = tuple(EQUATIONS)  # the layers that `split` knows
# The number of weights of a layer of real size, over the square of its hidden width; `flops` counts the head by itself.
_WEIGHTS_OVER_HIDDEN_SQUARED = {"mlp": 8, "columns": 4, "rows": 4, "attention": 4, "embedding": 0}


@dataclass(frozen=True, kw_only=True)
class ShardedMatrix:
    """A matrix with its owners.

    by: whether its "rows" or its "columns" are distributed. ranks: the owner of each such row or column, None where
    every rank has it; empty where every rank has the whole matrix. partial: whether it is one term of a sum over the
    ranks, which is useless before it is added to the others.
    """

    name: str
    values: Matrix
    by: str = "rows"
    ranks: tuple[int | None, ...] = ()
    partial: bool = False

    def owner(self, row: int, column: int) -> int | None:
        """The rank that owns this element; None where every rank has it."""
        return self.ranks[row if self.by == "rows" else column] if self.ranks else None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.values), len(self.values[0])


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A collective between ranks.

    op: its name, such as "all_reduce". name: the matrix that it sends. count: elements of the full buffer in the small
    example. per_token: how many fp32 elements each token sends; 0 stands for all hidden elements of a token, in 16
    bits. word: the reduction, such as "max", where it is not a sum.
    """

    op: str
    name: str
    count: int
    per_token: int = 0
    word: str = ""

    def num_bytes(self, tokens: int, hidden: int) -> int:
        """Bytes of the full buffer in a layer of real size."""
        return tokens * (4 * self.per_token if self.per_token else 2 * hidden)


PassItem = ShardedMatrix | Operation | str  # a text is an operator between matrices, such as "·" or "="; "" is a gap


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass over a layer, as matrices and operators from left to right: in one process, and on each rank.

    difference: the largest difference between an element that the ranks had together and the same one in one process.
    """

    one_process: tuple[PassItem, ...]
    by_rank: tuple[tuple[PassItem, ...], ...]
    difference: float

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The collectives of this pass, in order; they are the same on every rank."""
        return tuple(item for item in self.by_rank[0] if isinstance(item, Operation))


@cache
def recorded() -> dict[str, dict]:
    """What the ranks had, by layer.

    full: each matrix by its name. partial: by the number of ranks as a text and by name, each rank's matrix before a
    collective joined them. differences: by the number of ranks and by pass, without and with sequence parallelism.
    """
    return json.loads(RECORDED.read_text(encoding="utf-8"))


@lru_cache(maxsize=64)
def split(cut: str, ranks: int, sequence_parallel: bool = False) -> dict[str, Pass]:
    """The passes of a layer that is split over `ranks` ranks, by name: FORWARD, INPUTS and WEIGHTS.

    INPUTS gives the gradient of the layer's input and WEIGHTS those of its weights. cut: the kind of layer, a name of
    CUTS. An embedding has no INPUTS, because token ids have no gradient. Raises ValueError for an unknown cut, or for
    other ranks than RANKS has.
    """
    if cut not in EQUATIONS:
        raise ValueError(f"no cut {cut!r}; known are {', '.join(CUTS)}")
    if ranks not in RANKS:
        raise ValueError(
            f"{ranks!r} ranks cannot cut a layer whose widths are 4 and 8; take {' or '.join(map(str, RANKS))}"
        )
    layer = recorded()[cut]
    views = [_View(layer, ranks, sequence_parallel, rank) for rank in (None, *range(ranks))]
    passes = {}
    for name, equation in EQUATIONS[cut].items():
        one_process, *by_rank = (tuple(view.items(equation)) for view in views)
        difference = layer["differences"][str(ranks)][name][sequence_parallel]
        passes[name] = Pass(one_process=one_process, by_rank=tuple(by_rank), difference=difference)
    return passes


@dataclass(frozen=True)
class _View:
    """What one rank, or one process that has everything (rank None), has of a layer."""

    layer: Mapping[str, dict]  # an entry of `recorded`
    num_ranks: int
    sequence_parallel: bool
    rank: int | None

    def items(self, equation: str) -> Iterator[PassItem]:
        """The matrices, operators and collectives of an equation from left to right."""
        for word in equation.split():
            name, _, sharing = word.replace("_", " ").strip().partition(":")
            if not sharing:
                yield name
            elif self.rank is None:
                yield self._in_one_process(name, sharing)
            elif sharing in ("columns", "rows"):
                values = self._part(self._values(name), sharing)
                yield self._shard(name, values, sharing)
            elif sharing in ("tokens", "kept"):
                yield from self._tokens(name, gather=sharing == "tokens")
            elif sharing == "every":
                yield ShardedMatrix(name=name, values=self._values(name))
            else:
                yield from self._joined(name, sharing)

    def _in_one_process(self, name: str, sharing: str) -> ShardedMatrix:
        """The full matrix; each row or column is marked with the rank that will own it."""
        values = self._values(name)
        by = sharing if sharing in ("columns", "rows") else _tokens_by(name)
        is_split = sharing in ("columns", "rows") or (self.sequence_parallel and sharing in ("tokens", "kept", "sum"))
        return ShardedMatrix(name=name, values=values, by=by, ranks=self._owners(values, by) if is_split else ())

    def _tokens(self, name: str, *, gather: bool) -> Iterator[PassItem]:
        """A matrix of all tokens. With sequence parallelism only the rank's own tokens are marked with an owner."""
        values, by = self._values(name), _tokens_by(name)
        if self.sequence_parallel and gather:
            yield Operation(op="all_gather", name=name.removesuffix("ᵀ"), count=_num_elements(values))
        owners = tuple(owner if owner == self.rank else None for owner in self._owners(values, by))
        yield ShardedMatrix(name=name, values=values, by=by, ranks=owners if self.sequence_parallel else ())

    def _joined(self, name: str, sharing: str) -> Iterator[PassItem]:
        """A rank's partial matrix, the collective that joins those of all ranks, and what the rank then has."""
        values = self._values(name)
        partial = self.layer["partial"][str(self.num_ranks)][name][self.rank]
        yield self._shard(name, partial, "rows", partial=True)
        count = _num_elements(values)
        if sharing == "sum" and self.sequence_parallel:
            yield Operation(op="reduce_scatter", name=name, count=count)
            own = self._part(values, "rows")
            # Its name has no subscript, because Z₁ is already rank 1's partial sum.
            yield ShardedMatrix(name=f"own {name}", values=own, ranks=(self.rank,) * len(own))
            return
        per_token = 0 if sharing == "sum" else len(values[0])
        word = "max" if sharing == "max" else ""
        yield Operation(op="all_reduce", name=name.replace(" ", " and "), count=count, per_token=per_token, word=word)
        yield ShardedMatrix(name=name, values=values)

    def _shard(self, name: str, values: Matrix, by: str, *, partial: bool = False) -> ShardedMatrix:
        """A matrix of this rank, with the rank as a subscript of its name: Aᵀ of rank 1 is A₁ᵀ."""
        transposed = "ᵀ" if name.endswith("ᵀ") else ""
        named = name.removesuffix("ᵀ") + SUBSCRIPTS[self.rank] + transposed
        ranks = (self.rank,) * _length(values, by)
        return ShardedMatrix(name=named, values=values, by=by, ranks=ranks, partial=partial)

    def _values(self, name: str) -> Matrix:
        """The full matrix of this name, transposed where the name ends with ᵀ."""
        values = self.layer["full"][name.removesuffix("ᵀ")]
        return transpose(values) if name.endswith("ᵀ") else values

    def _part(self, values: Matrix, by: str) -> Matrix:
        """This rank's rows or columns of a full matrix."""
        start, stop = (_length(values, by) * edge // self.num_ranks for edge in (self.rank, self.rank + 1))
        return values[start:stop] if by == "rows" else [row[start:stop] for row in values]

    def _owners(self, values: Matrix, by: str) -> tuple[int, ...]:
        """The rank that owns each row or column of a full matrix."""
        length = _length(values, by)
        return tuple(index * self.num_ranks // length for index in range(length))


def _tokens_by(name: str) -> str:
    """Whether the tokens of a matrix are its rows or, where it is transposed, its columns."""
    return "columns" if name.endswith("ᵀ") else "rows"


def transpose(one: Matrix) -> Matrix:
    return tuple(zip(*one, strict=True))


def _length(values: Matrix, by: str) -> int:
    return len(values) if by == "rows" else len(values[0])


def _num_elements(values: Matrix) -> int:
    return len(values) * len(values[0])


def seconds(one: Pass, tokens: int, hidden: int, link: Link) -> float:
    """Seconds that the collectives of a pass take in a layer of real size, one after the other, each on a ring."""
    ranks = len(one.by_rank)
    return sum(costs.seconds(each.op, each.num_bytes(tokens, hidden), ranks, link) for each in one.operations)


def flops(cut: str, ranks: int, tokens: int, hidden: int) -> float:
    """Floating-point operations of a rank's matrix products with its weights, which are the same in each pass.

    The inner width is 4 * hidden. Attention's scores are left out. An embedding has none, because it only looks up
    rows.
    """
    weights = VOCABULARY * hidden if cut == "head" else _WEIGHTS_OVER_HIDDEN_SQUARED[cut] * hidden**2
    return 2 * tokens * weights / ranks  # a multiplication and an addition per weight and token
