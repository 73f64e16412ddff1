"""The sheet after a round: what was answered beside what is right, points, time, and the model answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from helpers.interview.rounds.items import Round
from helpers.interview.sheet import Markup, Sheet
from helpers.interview.stopwatch import Stopwatch, clock_text
from helpers.interview.words import say as quiz_say
from helpers.learner.words import book

say = book("round")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A place, a wrong mark, the hints, or a question. most: points that it could give."""

    title: str
    given: str
    right: str
    points: int
    most: int = 0

    @property
    def score(self) -> str:
        return f"{self.points} / {self.most}" if self.most else str(self.points)


@dataclass(frozen=True, kw_only=True)
class RoundSheet(Sheet):
    """links: where the course shows it. What else it can do, and how it is saved: as the sheet of a mock interview."""

    NARROW: ClassVar[tuple[int, ...]] = (0, 4)
    ROOMY: ClassVar[tuple[int, ...]] = (2,)

    item: Round
    watch: Stopwatch
    links: tuple[tuple[str, str], ...]

    @property
    def points(self) -> int:
        """Wrong marks and hints take none that were never given."""
        return max(0, sum(row.points for row in self.items))

    @property
    def most(self) -> int:
        return sum(row.most for row in self.items)

    @property
    def heading(self) -> str:
        title, kind = self.item.title.in_(self.language), say(self.item.kind, self.language)
        return say("title", self.language, title=title, kind=kind)

    @property
    def columns(self) -> list[str]:
        names = ("number", "place", "given", "right", "points")
        return [say(f"column.{name}", self.language) for name in names]

    @property
    def summary(self) -> tuple[str, str]:
        """Two lines: points and time."""
        over = self.say("over") if self.watch.is_over else ""
        used, limit = clock_text(self.watch.seconds), clock_text(self.watch.limit)
        points = say("points", self.language, points=self.points, most=self.most)
        return points, say("time", self.language, used=used, limit=limit) + over

    @property
    def closing(self) -> tuple[str, str]:
        """The model answer."""
        return say("model", self.language), self.item.told(self.item.model).in_(self.language)

    def steps(self) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
        """Read where it is shown, and do it again, unless all was right."""
        if self.points == self.most:
            return [(self.say("read_on"), self.links)]
        return [(self.say("read_on") + say("again", self.language, id=self.item.id), self.links)]

    def cells(self, number: int, item: Row, to: Markup) -> tuple[str, ...]:
        return str(number), to.text(item.title), to.text(item.given), to.text(item.right), item.score

    def _lines(self, number: int, item: Row) -> list[str]:
        colon = quiz_say("colon", self.language)
        told = {"given": item.given, "right": item.right, "points": item.score}
        lines = [f"   {say(f'column.{name}', self.language)}{colon}{text}" for name, text in told.items() if text]
        return [f"{number}. {item.title}", *lines]
