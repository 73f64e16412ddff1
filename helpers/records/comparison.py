"""Compares a predicted record with a measured one, and with a learner's guess, as one table of text or HTML.

`compare` takes two records of one type, such as two Timelines. A record has a method `summary`, which returns its
numbers as name -> (value, unit). A guess is what the learner typed before the measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from helpers.learner import document
from helpers.learner.words.wrapping import aligned
from helpers.quantities.units import format_ratio, format_value

_CELL = "padding:2px 12px;text-align:right"  # the CSS of a cell with a number


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity of a comparison, in `unit`: "bytes", "seconds" or "count". A value is None where a side has none."""

    name: str
    unit: str
    predicted: float | None
    measured: float | None
    guess: float | None = None

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None when either is missing or the prediction is 0."""
        return self.measured / self.predicted if self.predicted and self.measured is not None else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The rows of `compare`. Its text and its HTML show the same table."""

    rows: tuple[Row, ...]

    def __getitem__(self, name: str) -> Row:
        known = {row.name: row for row in self.rows}
        if name not in known:
            raise ValueError(f"this Comparison has no row {name!r}; its rows are {', '.join(known)}")
        return known[name]

    def table(self) -> list[list[str]]:
        """The header and the rows as text. The column of guesses is left out when there is no guess."""
        with_guess = any(row.guess is not None for row in self.rows)
        header = ["", *(["your guess"] if with_guess else []), "predicted", "measured", "measured / predicted"]
        return [header, *(self._cells(row, with_guess) for row in self.rows)]

    @staticmethod
    def _cells(row: Row, with_guess: bool) -> list[str]:
        """The cells of a row as text, without the header."""
        values = [*([row.guess] if with_guess else []), row.predicted, row.measured]
        return [row.name, *(format_value(value, row.unit) for value in values), format_ratio(row.ratio)]

    def __repr__(self) -> str:
        return "\n".join(aligned(self.table()))

    def _repr_html_(self) -> str:
        head, *body = self.table()
        styles = ["padding:2px 12px;text-align:left", *[_CELL] * (len(head) - 1)]  # the first column has the names
        shown = document.table(
            head, body, has_row_heads=True, heads=lambda column: {"style": _CELL},
            cells=lambda column: {"style": styles[column]}, style="font-variant-numeric:tabular-nums",
        )  # fmt: skip
        return shown.html


def _unit_of(name: str) -> str:
    """The unit that the name of a plain number ends in."""
    for ending, unit in (("bytes", "bytes"), ("seconds", "seconds"), ("time", "seconds")):
        if name.lower().endswith(ending):
            return unit
    return "count"


def _summary(given: object, what: str) -> dict[str, tuple[float, str]]:
    """name -> (value, unit) of a record, a mapping of numbers, or one number."""
    if hasattr(given, "summary"):
        return given.summary()
    if isinstance(given, Real):
        return {"value": (given, "count")}
    if isinstance(given, Mapping) and all(isinstance(value, Real) for value in given.values()):
        return {name: (value, _unit_of(name)) for name, value in given.items()}
    raise ValueError(
        f"compare got a {type(given).__name__} as {what}; give a Timeline, a CommLog, a MemoryBreakdown, "
        "a dict of numbers (its keys end in 'bytes' or 'seconds' where they have a unit) or one number"
    )


def _guesses(guess: object, names: list[str]) -> dict[str, float]:
    """The learner's guesses by row name. A single number is a guess for the first row. names: of all rows."""
    if guess is None:
        return {}
    if isinstance(guess, Real):
        return {names[0]: guess}
    guesses = {name: value for name, (value, _) in _summary(guess, "guess").items()}
    unknown = [name for name in guesses if name not in names]
    if unknown:
        raise ValueError(f"the guess names {unknown[0]!r}, but the rows are {', '.join(names)}")
    return guesses


def compare(predicted: object, measured: object, *, guess: object = None) -> Comparison:
    """A table of predicted and measured values, row by row, with `guess` beside them if there is one.

    Both sides are records of one type, or dicts of numbers, or numbers; ValueError where their types differ. `guess` is
    one number, which stands for the first row, or a dict from row names to numbers.
    """
    kinds = [type(side) for side in (predicted, measured)]
    if kinds[0] is not kinds[1] and not all(issubclass(kind, (Real, Mapping)) for kind in kinds):
        raise ValueError(f"compare got a {kinds[0].__name__} and a {kinds[1].__name__}; give two records of one type")
    left, right = _summary(predicted, "predicted"), _summary(measured, "measured")
    names = list(dict.fromkeys((*left, *right)))
    guesses = _guesses(guess, names)
    rows = (
        Row(
            name=name,
            unit=(left.get(name) or right[name])[1],
            predicted=left.get(name, (None, ""))[0],
            measured=right.get(name, (None, ""))[0],
            guess=guesses.get(name),
        )
        for name in names
    )
    return Comparison(rows=tuple(rows))
