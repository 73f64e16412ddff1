"""Provides matrices that are small enough to be read, in plain Python, and records which rank owns each row or column.

A matrix is a tuple of rows. `Block` adds the owners and `Operation` is a collective between ranks; `Pass` is one pass
over a layer as a row of both. tensor_split.py computes with them, and the tensor-parallel explorer draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import exp

Matrix = Sequence[Sequence[float]]


def transpose(one: Matrix) -> Matrix:
    return tuple(zip(*one, strict=True))


def matmul(left: Matrix, right: Matrix) -> Matrix:
    """left (n x k) times right (k x m)."""
    return tuple(tuple(_dot(row, column) for column in transpose(right)) for row in left)


def _dot(row: Sequence[float], column: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(row, column, strict=True))


def elementwise(function: Callable[..., float], *matrices: Matrix) -> Matrix:
    """Apply `function` to the elements at the same position of matrices of one shape."""
    return tuple(
        tuple(function(*elements) for elements in zip(*same_rows, strict=True))
        for same_rows in zip(*matrices, strict=True)
    )


def add(*matrices: Matrix) -> Matrix:
    return elementwise(lambda *elements: sum(elements), *matrices)


def multiply(left: Matrix, right: Matrix) -> Matrix:
    """The elementwise product."""
    return elementwise(lambda a, b: a * b, left, right)


def relu(one: Matrix) -> Matrix:
    return elementwise(lambda a: max(0, a), one)


def relu_slope(one: Matrix) -> Matrix:
    """The derivative of ReLU, which torch takes as 0 at 0."""
    return elementwise(lambda a: int(a > 0), one)


def rows(one: Matrix, part: int, parts: int) -> Matrix:
    """The rows of part `part` (from 0) if the matrix is divided into `parts` equal parts."""
    return tuple(one[len(one) * part // parts : len(one) * (part + 1) // parts])


def columns(one: Matrix, part: int, parts: int) -> Matrix:
    """The columns of part `part` (from 0) if the matrix is divided into `parts` equal parts."""
    return transpose(rows(transpose(one), part, parts))


def stack(matrices: Sequence[Matrix], by: str) -> Matrix:
    """The matrices below each other (by "rows") or side by side (by "columns")."""
    if by == "rows":
        return tuple(chain.from_iterable(matrices))
    return transpose(stack([transpose(one) for one in matrices], "rows"))


def one_hot(ids: Sequence[int], width: int) -> Matrix:
    return tuple(tuple(int(column == number) for column in range(width)) for number in ids)


def largest_difference(one: Matrix, other: Matrix) -> float:
    """The largest absolute difference of two elements at the same position."""
    return max(chain.from_iterable(elementwise(lambda a, b: abs(a - b), one, other)), default=0)


def attend(query: Matrix, key: Matrix, value: Matrix) -> Matrix:
    """Causal attention whose heads have one column each, so the scores need no scale."""
    heads = zip(*map(transpose, (query, key, value)), strict=True)
    return transpose([[_dot(p, v) for p in _weights(q, k)] for q, k, v in heads])


def _weights(query: Sequence[float], key: Sequence[float]) -> Matrix:
    """The softmax of query[i] * key[j] over the tokens j up to i, 0 for those after it."""
    rows_of_weights = []
    for token, q in enumerate(query):
        powers = [exp(q * k) if at <= token else 0.0 for at, k in enumerate(key)]
        rows_of_weights.append([power / sum(powers) for power in powers])
    return rows_of_weights


def attend_backward(query: Matrix, key: Matrix, value: Matrix, arrives: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """The gradients of query, key and value from that of `attend`'s result."""
    heads = zip(*map(transpose, (query, key, value, arrives)), strict=True)
    per_head = [_head_backward(*head) for head in heads]
    return tuple(transpose(gradients) for gradients in zip(*per_head, strict=True))


def _head_backward(query: Sequence[float], key: Sequence[float], value: Sequence[float], arrives: Sequence[float]):
    weights = _weights(query, key)
    raw = [[gradient * v for v in value] for gradient in arrives]
    scores = [
        [p * (g - _dot(row, gs)) for p, g in zip(row, gs, strict=True)] for row, gs in zip(weights, raw, strict=True)
    ]
    to_query = [_dot(row, key) for row in scores]
    to_key, to_value = (
        [_dot(column, by) for column in zip(*of, strict=True)] for of, by in ((scores, query), (weights, arrives))
    )
    return to_query, to_key, to_value


SUBSCRIPTS = "₀₁₂₃"  # of ranks


@dataclass(frozen=True, kw_only=True)
class ShardedMatrix:
    """A matrix with its owners: `ranks` has the rank of each row or column (`by`), or None where every rank has it.

    partial: whether it is one term of a sum over the ranks, which is useless before it is added to the others.
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
    """A collective between ranks. op: such as "all_reduce". name: of the matrix. count: elements of the full buffer.

    per_token: 0 where each token sends all its hidden elements in 16 bits; else how many elements it sends, in fp32.
    word: the reduction, such as "max", where it is not a sum.
    """

    op: str
    name: str
    count: int
    per_token: int = 0
    word: str = ""

    def num_bytes(self, tokens: int, hidden: int) -> int:
        """Bytes of the full buffer in a layer of real size."""
        return tokens * (4 * self.per_token if self.per_token else 2 * hidden)


PassItem = ShardedMatrix | Operation | str


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass over a layer, as matrices and operators from left to right: in one process, and on each rank.

    results: for each result the ranks' matrices, one per rank. expected: the same result in one process.
    """

    one_process: tuple[PassItem, ...]
    by_rank: tuple[tuple[PassItem, ...], ...]
    results: dict[str, tuple[ShardedMatrix, ...]]
    expected: dict[str, Matrix]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The collectives of this pass, in order; they are the same on every rank."""
        return tuple(item for item in self.by_rank[0] if isinstance(item, Operation))

    def joined(self, name: str) -> Matrix:
        """A result as all ranks together have it: partial sums are added, shards are put together."""
        first, *_ = blocks = self.results[name]
        values = [block.values for block in blocks]
        return add(*values) if first.partial else stack(values, first.by)

    @property
    def difference(self) -> float:
        """The largest difference between an element that the ranks have together and the same one in one process."""
        return max(largest_difference(self.joined(name), value) for name, value in self.expected.items())


@dataclass(frozen=True)
class RankGroup:
    """A tensor-parallel group of `size` ranks, which may shard tokens between layers (sequence parallelism)."""

    size: int
    sequence_parallel: bool = False

    @property
    def ranks(self) -> range:
        return range(self.size)

    def owners(self, length: int) -> tuple[int, ...]:
        """The rank that owns each of `length` rows or columns."""
        return tuple(index * self.size // length for index in range(length))

    def cut(self, name: str, values: Matrix, by: str) -> ShardedMatrix:
        """The full matrix, each row or column with its rank."""
        return ShardedMatrix(name=name, values=values, by=by, ranks=self.owners(_length(values, by)))

    def part(self, values: Matrix, by: str, rank: int) -> Matrix:
        """The shard that one rank has of a matrix that is split by "rows" or "columns"."""
        return (rows if by == "rows" else columns)(values, rank, self.size)

    def tokens(self, name: str, values: Matrix, by: str = "rows") -> ShardedMatrix:
        """A matrix with the tokens as rows: the same on every rank, or sharded with sequence parallelism."""
        return self.cut(name, values, by) if self.sequence_parallel else ShardedMatrix(name=name, values=values)

    def gathered(self, name: str, values: Matrix, rank: int, by: str = "rows") -> ShardedMatrix:
        """The matrix of all tokens on a rank that computes with it; with sequence parallelism others were gathered."""
        ranks = tuple(owner if owner == rank else None for owner in self.owners(_length(values, by)))
        return ShardedMatrix(name=name, values=values, by=by, ranks=ranks if self.sequence_parallel else ())

    def gather(self, name: str, values: Matrix) -> Iterator[Operation]:
        """The all-gather that brings all tokens to a rank, with sequence parallelism only."""
        if self.sequence_parallel:
            yield Operation(op="all_gather", name=name, count=_numbers(values))

    def sums(self, name: str, partial_sums: Sequence[ShardedMatrix]) -> list[list[PassItem]]:
        """For each rank: the operation that adds the partial sums up, and what the rank then has of the sum."""
        values = add(*(term.values for term in partial_sums))
        op = "reduce_scatter" if self.sequence_parallel else "all_reduce"
        operation = Operation(op=op, name=name, count=_numbers(values))
        if self.sequence_parallel:
            return [[operation, self._own(name, values, rank)] for rank in self.ranks]
        return [[operation, ShardedMatrix(name=name, values=values)] for _ in self.ranks]

    def _own(self, name: str, values: Matrix, rank: int) -> ShardedMatrix:
        """The sum for the tokens of one rank. It has no subscript, unlike the rank's partial sum."""
        part = self.part(values, "rows", rank)
        return ShardedMatrix(name=f"own {name}", values=part, ranks=(rank,) * len(part))


def matrix_of_rank(name: str, values: Matrix, by: str, rank: int, *, partial: bool = False) -> ShardedMatrix:
    """A matrix of one rank, with the rank as a subscript of its name: Aᵀ of rank 1 is A₁ᵀ."""
    named = name.removesuffix("ᵀ") + SUBSCRIPTS[rank] + "ᵀ" * name.endswith("ᵀ")
    return ShardedMatrix(name=named, values=values, by=by, ranks=(rank,) * _length(values, by), partial=partial)


def partial_sums(name: str, values: Sequence[Matrix]) -> list[ShardedMatrix]:
    """The partial sums of a matrix, one per rank."""
    return [matrix_of_rank(name, one, "rows", rank, partial=True) for rank, one in enumerate(values)]


def _length(values: Matrix, by: str) -> int:
    return len(values) if by == "rows" else len(values[0])


def _numbers(values: Matrix) -> int:
    return len(values) * len(values[0])
