"""Matrices with their ranks, the operations between ranks, and a pass over a layer: what `tensor_split` is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from helpers.predict.by_hand.small_matrices import Matrix, add, columns, largest_difference, rows, stack

SUBSCRIPTS = "₀₁₂₃"  # of ranks


@dataclass(frozen=True, kw_only=True)
class Block:
    """A matrix, and whose numbers these are: `ranks` has a rank for each row or column (`by`), None for every rank's.

    partial: one term of a sum over the ranks, of no use before it is added to the others.
    """

    name: str
    values: Matrix
    by: str = "rows"
    ranks: tuple[int | None, ...] = ()
    partial: bool = False

    def owner(self, row: int, column: int) -> int | None:
        """The rank whose number this is; None where every rank has it."""
        return self.ranks[row if self.by == "rows" else column] if self.ranks else None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.values), len(self.values[0])


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What ranks send each other. name: of the matrix; count: numbers of the whole buffer, here.

    per_token: 0 where a token sends all its hidden numbers, in 16 bit; else how many numbers it sends, in fp32.
    word: what is done to the numbers where it is not what the operation's name says.
    """

    op: str
    name: str
    count: int
    per_token: int = 0
    word: str = ""

    def num_bytes(self, tokens: int, hidden: int) -> int:
        """Bytes of the whole buffer in a layer of real size."""
        return tokens * (4 * self.per_token or 2 * hidden)


Item = Block | Operation | str


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Matrices and operators from left to right: of one process, and of each rank.

    found: what the ranks have of each result, a Block a rank; expected: the same in one process.
    """

    whole: tuple[Item, ...]
    by_rank: tuple[tuple[Item, ...], ...]
    found: dict[str, tuple[Block, ...]]
    expected: dict[str, Matrix]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What the ranks send in this pass, in order; the same on every rank."""
        return tuple(item for item in self.by_rank[0] if isinstance(item, Operation))

    def joined(self, name: str) -> Matrix:
        """A result as all ranks together have it: terms added, parts put side by side."""
        first, *_ = blocks = self.found[name]
        values = [block.values for block in blocks]
        return add(*values) if first.partial else stack(values, first.by)

    @property
    def difference(self) -> float:
        """The largest between a number that the ranks have together and the one that one process has."""
        return max(largest_difference(self.joined(name), value) for name, value in self.expected.items())


@dataclass(frozen=True)
class Group:
    """How many ranks there are, and whether tokens are cut between the layers (sequence parallelism)."""

    size: int
    sequence_parallel: bool = False

    @property
    def ranks(self) -> range:
        return range(self.size)

    def owners(self, length: int) -> tuple[int, ...]:
        """The rank of each of `length` rows or columns."""
        return tuple(place * self.size // length for place in range(length))

    def cut(self, name: str, values: Matrix, by: str) -> Block:
        """The whole matrix, each row or column with its rank."""
        return Block(name=name, values=values, by=by, ranks=self.owners(_length(values, by)))

    def part(self, values: Matrix, by: str, rank: int) -> Matrix:
        """The numbers that one rank has of a matrix that is cut."""
        return (rows if by == "rows" else columns)(values, rank, self.size)

    def tokens(self, name: str, values: Matrix, by: str = "rows") -> Block:
        """A matrix of whole tokens: the same on every rank, or with sequence parallelism cut by token."""
        return self.cut(name, values, by) if self.sequence_parallel else Block(name=name, values=values)

    def gathered(self, name: str, values: Matrix, rank: int, by: str = "rows") -> Block:
        """The same on a rank that works with it: all tokens, with sequence parallelism its own and those gathered."""
        ranks = tuple(owner if owner == rank else None for owner in self.owners(_length(values, by)))
        return Block(name=name, values=values, by=by, ranks=ranks if self.sequence_parallel else ())

    def gather(self, name: str, values: Matrix) -> Iterator[Operation]:
        """With sequence parallelism, what brings all tokens to a rank."""
        if self.sequence_parallel:
            yield Operation(op="all_gather", name=name, count=_numbers(values))

    def sums(self, name: str, terms: Sequence[Block]) -> list[list[Item]]:
        """For each rank: the operation that adds the terms up, and what the rank has of the sum."""
        values = add(*(term.values for term in terms))
        op = "reduce_scatter" if self.sequence_parallel else "all_reduce"
        operation = Operation(op=op, name=name, count=_numbers(values))
        if self.sequence_parallel:
            return [[operation, self._own(name, values, rank)] for rank in self.ranks]
        return [[operation, Block(name=name, values=values)] for _ in self.ranks]

    def _own(self, name: str, values: Matrix, rank: int) -> Block:
        """The tokens of one rank. Not numbered as its term of the sum is."""
        part = self.part(values, "rows", rank)
        return Block(name=f"own {name}", values=part, ranks=(rank,) * len(part))


def mine(name: str, values: Matrix, by: str, rank: int, *, partial: bool = False) -> Block:
    """A matrix that one rank has, which carries its rank: Aᵀ of rank 1 is A₁ᵀ."""
    named = name.removesuffix("ᵀ") + SUBSCRIPTS[rank] + "ᵀ" * name.endswith("ᵀ")
    return Block(name=named, values=values, by=by, ranks=(rank,) * _length(values, by), partial=partial)


def terms(name: str, values: Sequence[Matrix]) -> list[Block]:
    """The terms of a sum, one a rank."""
    return [mine(name, one, "rows", rank, partial=True) for rank, one in enumerate(values)]


def _length(values: Matrix, by: str) -> int:
    return len(values) if by == "rows" else len(values[0])


def _numbers(values: Matrix) -> int:
    return len(values) * len(values[0])
