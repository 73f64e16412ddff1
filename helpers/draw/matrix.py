"""A matrix and how it is cut, as plain data for `helpers.draw.shards`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CUTS = ("columns", "rows", "flat", None)


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """`cut` into `num_parts` equal parts, part p owned by ranks[p] (by default p).

    cut: "columns", "rows", "flat" (ZeRO's: all numbers, row by row, as one line) or None: whole, on every rank or on
    the one in `ranks`. num_rows and num_columns are what is drawn; `shape` replaces them in the words below, such as
    "4096 × 16384", and `held` what is said of a rank's part. values: num_rows x num_columns numbers for the cells, or
    None. note: a line of words below.
    ValueError for an unknown cut, for parts that do not divide, for values of another shape.
    """

    name: str
    num_rows: int
    num_columns: int
    cut: str | None = None
    num_parts: int = 1
    ranks: tuple[int, ...] = ()
    values: Sequence[Sequence[float]] | None = None
    shape: str = ""
    held: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.num_rows < 1 or self.num_columns < 1:
            raise ValueError(f"matrix {self.name} is {self.num_rows} x {self.num_columns}; both must be at least 1")
        if self.cut not in CUTS:
            raise ValueError(f"the cut of matrix {self.name} is {self.cut!r}; it must be columns, rows, flat or None")
        if self.num_parts < 1 or (self.cut is None and self.num_parts > 1):
            raise ValueError(
                f"matrix {self.name} with cut {self.cut!r} has {self.num_parts} parts; give at least 1, and a cut"
            )
        if self.length % self.num_parts:
            raise ValueError(
                f"{self.num_parts} parts do not divide the {self.length} {self.unit} of matrix {self.name}; "
                f"choose a number of parts that divides {self.length}"
            )
        if self.ranks and len(self.ranks) != self.num_parts:
            raise ValueError(
                f"matrix {self.name} has {self.num_parts} parts but {len(self.ranks)} ranks; give one each"
            )
        found = None if self.values is None else sorted({(len(self.values), len(row)) for row in self.values})
        if found not in (None, [(self.num_rows, self.num_columns)]):
            raise ValueError(f"matrix {self.name} is {self.num_rows} x {self.num_columns}, but its values are {found}")

    @property
    def length(self) -> int:
        """How many of what is cut."""
        return {"columns": self.num_columns, "rows": self.num_rows}.get(self.cut, self.num_rows * self.num_columns)

    @property
    def unit(self) -> str:
        return self.cut if self.cut in ("columns", "rows") else "numbers"

    @property
    def owners(self) -> tuple[int | None, ...]:
        """The rank of each part; None for every rank."""
        return self.ranks or ((None,) if self.cut is None else tuple(range(self.num_parts)))

    def part(self, row: int, column: int) -> int:
        """In which part a cell lies."""
        place = {"columns": column, "rows": row}.get(self.cut, row * self.num_columns + column)
        return place * self.num_parts // self.length

    @property
    def shape_words(self) -> str:
        return self.shape or f"{self.num_rows} × {self.num_columns}"

    @property
    def cut_words(self) -> str:
        """How much a rank holds."""
        if self.held:
            return self.held
        if self.cut is None:
            return "every rank: all of it" if not self.ranks else f"rank {self.ranks[0]}: all of it"
        return f"each: 1/{self.num_parts} of the {self.unit}"
