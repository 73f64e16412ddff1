"""Provides matrices that are small enough to be read, in plain Python, and records which rank owns each row or column.

A matrix is a tuple of rows. The first half of this file is arithmetic on matrices. Then `ShardedMatrix` is a matrix
with its owners, `Operation` is a collective between ranks, and `Pass` is one forward or backward pass over a layer as a
row of both. `RankGroup` makes these records for a tensor-parallel group, and `ShardedLoss` is the cross entropy of a
vocabulary that is split over its ranks. tensor_split.py computes with them, and the
tensor-parallel explorer draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import exp, log

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
    """The attention weights of one head: the softmax of query[i] * key[j] over the tokens j up to i, 0 after it."""
    rows_of_weights = []
    for i, q in enumerate(query):
        powers = [exp(q * k) if j <= i else 0.0 for j, k in enumerate(key)]
        rows_of_weights.append([power / sum(powers) for power in powers])
    return rows_of_weights


def attend_backward(query: Matrix, key: Matrix, value: Matrix, arrives: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """The gradients of query, key and value, from the gradient of `attend`'s result (`arrives`)."""
    heads = zip(*map(transpose, (query, key, value, arrives)), strict=True)
    per_head = [_head_backward(*head) for head in heads]
    return tuple(transpose(gradients) for gradients in zip(*per_head, strict=True))


def _head_backward(query: Sequence[float], key: Sequence[float], value: Sequence[float], arrives: Sequence[float]):
    """The gradients of one head's query, key and value, each one number per token."""
    weights = _weights(query, key)
    to_weights = [[gradient * v for v in value] for gradient in arrives]
    to_scores = []  # backward of softmax: p * (g - sum of p * g over the row)
    for row, gradients in zip(weights, to_weights, strict=True):
        mean = _dot(row, gradients)
        to_scores.append([p * (g - mean) for p, g in zip(row, gradients, strict=True)])
    to_query = [_dot(row, key) for row in to_scores]
    to_key = [_dot(column, query) for column in transpose(to_scores)]
    to_value = [_dot(column, arrives) for column in transpose(weights)]
    return to_query, to_key, to_value


SUBSCRIPTS = "₀₁₂₃"  # the rank in the name of its shard: A₁ is rank 1's part of A; there are at most 4 ranks


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

    results: for each result the ranks' matrices, one per rank (or a single one where every rank has the full result).
    expected: the same result in one process.
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
        """The ranks of the group, from 0."""
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
        """The matrix of all tokens on a rank that computes with it.

        With sequence parallelism, the rank's own tokens are marked as its own, while the others were gathered and have
        no owner here.
        """
        ranks = tuple(owner if owner == rank else None for owner in self.owners(_length(values, by)))
        return ShardedMatrix(name=name, values=values, by=by, ranks=ranks if self.sequence_parallel else ())

    def gather(self, name: str, values: Matrix) -> Iterator[Operation]:
        """The all-gather that brings all tokens to a rank, with sequence parallelism only."""
        if self.sequence_parallel:
            yield Operation(op="all_gather", name=name, count=_num_elements(values))

    def sums(self, name: str, partial_sums: Sequence[ShardedMatrix]) -> list[list[PassItem]]:
        """For each rank: the operation that adds the partial sums up, and what the rank then has of the sum."""
        values = add(*(term.values for term in partial_sums))
        op = "reduce_scatter" if self.sequence_parallel else "all_reduce"
        operation = Operation(op=op, name=name, count=_num_elements(values))
        if self.sequence_parallel:
            return [[operation, self._own(name, values, rank)] for rank in self.ranks]
        return [[operation, ShardedMatrix(name=name, values=values)] for _ in self.ranks]

    def _own(self, name: str, values: Matrix, rank: int) -> ShardedMatrix:
        """The sum for the tokens of one rank. Its name has no subscript, because Z₁ is already rank 1's partial sum."""
        part = self.part(values, "rows", rank)
        return ShardedMatrix(name=f"own {name}", values=part, ranks=(rank,) * len(part))


@dataclass(frozen=True, kw_only=True)
class ShardedLoss:
    """Cross entropy of logits that are split by columns, so that each rank has some of the vocabulary.

    The loss of a token is log(s) + m - t. m: its largest logit. s: the sum of exp(logit - m). t: its target's logit.
    Each rank has these three numbers of its own columns, and the ranks join them with a maximum and two sums.
    """

    logits: list[Matrix]  # one matrix per rank, (tokens, columns of the rank)
    target_ids: Sequence[int]  # of each token

    @property
    def largest(self) -> list[Matrix]:
        """For each rank, a column with the largest logit of each token among the rank's columns."""
        return [[[max(row)] for row in one] for one in self.logits]

    @property
    def joined_largest(self) -> Matrix:
        """A column with m of each token."""
        return elementwise(max, *self.largest) if len(self.logits) > 1 else self.largest[0]

    @property
    def powers(self) -> list[Matrix]:
        """exp(logit - m) of each rank's logits."""
        return [
            [[exp(x - m) for x in row] for row, (m,) in zip(one, self.joined_largest, strict=True)]
            for one in self.logits
        ]

    @property
    def targets(self) -> list[Matrix]:
        """A 1 at each token's target, split like the logits."""
        wide = one_hot(self.target_ids, sum(len(one[0]) for one in self.logits))
        group = RankGroup(len(self.logits))
        return [group.part(wide, "columns", rank) for rank in group.ranks]

    @property
    def sums(self) -> list[Matrix]:
        """For each rank and token, the rank's terms of s and t. t is 0 where another rank has the target."""
        s_and_t = []
        for logits, powers, targets in zip(self.logits, self.powers, self.targets, strict=True):
            target_logits = multiply(logits, targets)
            s_and_t.append([[sum(p), sum(t)] for p, t in zip(powers, target_logits, strict=True)])
        return s_and_t

    @property
    def losses(self) -> Matrix:
        """A column with the loss of each token."""
        return [[log(s) + m - t] for (m,), (s, t) in zip(self.joined_largest, add(*self.sums), strict=True)]

    @property
    def gradients(self) -> list[Matrix]:
        """The gradients of the mean loss for the logits of each rank: (softmax - one-hot target) / tokens."""
        totals = [(s,) * len(self.powers[0][0]) for s, _ in add(*self.sums)]  # s of each token, in every column
        parts = zip(self.powers, self.targets, strict=True)
        return [
            elementwise(lambda p, s, target: (p / s - target) / len(self.target_ids), power, totals, targets)
            for power, targets in parts
        ]


def matrix_of_rank(name: str, values: Matrix, by: str, rank: int, *, partial: bool = False) -> ShardedMatrix:
    """A matrix of one rank, with the rank as a subscript of its name: Aᵀ of rank 1 is A₁ᵀ."""
    transposed = "ᵀ" if name.endswith("ᵀ") else ""
    named = name.removesuffix("ᵀ") + SUBSCRIPTS[rank] + transposed
    return ShardedMatrix(name=named, values=values, by=by, ranks=(rank,) * _length(values, by), partial=partial)


def partial_sums(name: str, values: Sequence[Matrix]) -> list[ShardedMatrix]:
    """The partial sums of a matrix, one per rank."""
    return [matrix_of_rank(name, one, "rows", rank, partial=True) for rank, one in enumerate(values)]


def _length(values: Matrix, by: str) -> int:
    return len(values) if by == "rows" else len(values[0])


def _num_elements(values: Matrix) -> int:
    return len(values) * len(values[0])
