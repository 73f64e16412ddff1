"""Draws the course as a map: a row per chapter, its stations as wide as their minutes, what is done, and what is due.

A chapter consists of stations, each with a letter and minutes, with guesses (questions before a result) and exercises,
and of tasks in a lab. The path is the short way through a chapter: the stations with `on_path`. Cards are interview
questions, which come back when they are due. `make course` and the progress view show the map with a learner's own
progress; without progress it shows the totals.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from helpers.draw.scene import (
    MARGIN,
    WIDTH,
    Label,
    Line,
    Rect,
    Scene,
    heading,
    labelled_box,
    shortened,
    text_width,
)
from helpers.learner.course import Chapter, Station
from helpers.learner.words import book

words = book("course")  # what a reader sees, by name, in the learner's language: learner/words/course.yaml
# Pixels: from row to row, a station's height, the strip of progress below it, between stations, and letters.
_PITCH, _BOX, _STRIP, _GAP, _FONT = 36.0, 20.0, 4.0, 2.0, 12.0
_TITLE_LEFT, _STATIONS_LEFT, _STATIONS_RIGHT = 40.0, 236.0, 520.0  # pixels: where these columns begin and end
_COLUMNS = {"minutes": 594.0, "tasks": 656.0, "guesses": 718.0, "cards": 790.0}  # pixels: where a column of texts ends
_DONE = "activations"  # orange, because neither green nor another blue stands out from the path's blue
_NARROWEST = 13.0  # pixels of a station, so that its letter fits
_FULL_WIDTH_MINUTES = 65  # a chapter of so many minutes fills the column, unless another chapter has more


@dataclass(frozen=True, kw_only=True)
class MapRow:
    """A chapter of the map.

    `done` are the keys that were guessed or passed; None makes the map nobody's, which shows totals only. `cards`
    is how many cards are due, as text.
    """

    chapter: Chapter
    done: frozenset[str] | None = None
    cards: str = ""

    @property
    def name(self) -> str:
        """Number and title, such as "08 ZeRO"."""
        return f"{self.chapter.number} {self.chapter.title}".strip()

    @property
    def minutes(self) -> str:
        """The minutes of the short path and of all stations, such as "25 / 65"."""
        return f"{self.chapter.path_minutes} / {self.chapter.minutes}" if self.chapter.stations else ""

    def count(self, keys: Sequence[str]) -> str:
        """How many of the keys are done: "2 of 6", or "6" on nobody's map; "" where there are none."""
        if not keys or self.done is None:
            return str(len(keys) or "")
        return words("of", done=len(self.done & set(keys)), all=len(keys))

    def share(self, station: Station) -> float:
        """The share of a station's guesses and exercises that is done, 0 to 1."""
        keys = {*station.guesses, *station.exercises}
        return len(keys & (self.done or set())) / len(keys) if keys else 0.0


def course_map_scene(rows: Sequence[MapRow], *, week: Sequence[str] = ()) -> Scene:
    """A Scene of the chapters in order; `week` is the advised order of their numbers. ValueError without rows."""
    if not rows:
        raise ValueError(words("nowhere"))
    # "deeper": the stations that are not on the short path.
    styles = {"path": _station_style(True), "deeper": _station_style(False), "done": {"fill": _DONE}}
    # The items of title and legend, and the y where these end.
    items, top = heading(words("title"), [(words(name), style) for name, style in styles.items()])
    top += 30
    most_minutes = max(_FULL_WIDTH_MINUTES, *(row.chapter.minutes for row in rows))
    scale = (_STATIONS_RIGHT - _STATIONS_LEFT) / most_minutes  # pixels per minute
    items += _column_names(top - 14)
    for number, row in enumerate(rows):
        items += _row(row, top + number * _PITCH, scale)
    bottom = top + len(rows) * _PITCH
    sentences = [_sentence(row) for row in rows]
    if week:
        order = words("week", order=" → ".join(week))
        items.append(Label(x=MARGIN, y=bottom + 16, text=order, size=_FONT))
        sentences.append(order)
    return Scene(height=bottom + 34, title=words("title"), summary=" ".join(sentences).strip(), items=items)


def _station_style(on_path: bool) -> dict[str, str]:
    """How a station looks, which is on the short path or not."""
    return {"fill": "forward"} if on_path else {"fill": "panel", "stroke": "muted"}


def _column_names(y: float) -> Iterator[Label]:
    """The names above the columns."""
    for name, x in {"chapter": MARGIN, "stations": _STATIONS_LEFT}.items():
        yield Label(x=x, y=y, text=words(name), size=_FONT, colour="muted")
    for name, x in _COLUMNS.items():
        yield Label(x=x, y=y, text=words(name), size=_FONT, anchor="end", colour="muted")


def _row(row: MapRow, y: float, scale: float) -> Iterator[Rect | Label | Line]:
    """A chapter below a line: its number, its title, its stations, and the four columns of counts."""
    yield Line(x1=MARGIN, y1=y, x2=WIDTH - 10, y2=y)
    middle = y + _PITCH / 2
    yield Label(x=MARGIN, y=middle, text=row.chapter.number, size=_FONT, bold=True)
    left = _TITLE_LEFT if row.chapter.number else MARGIN
    title, available = row.chapter.title, _STATIONS_LEFT - left - 8
    if text_width(title, _FONT) > available:  # then what comes before its colon, or as much of that as fits
        title = shortened(title.partition(":")[0], available, _FONT)
    yield Label(x=left, y=middle, text=title, size=_FONT)
    yield from _stations(row, y + (_PITCH - _BOX - _STRIP - 1) / 2, scale)
    values = (row.minutes, row.count(row.chapter.tasks), row.count(row.chapter.guesses), row.cards)
    for text, x in zip(values, _COLUMNS.values(), strict=True):
        yield Label(x=x, y=middle, text=text, size=_FONT, anchor="end")


def _stations(row: MapRow, y: float, scale: float) -> Iterator[Rect | Label]:
    """A box per station with its letter, and below it a strip for the share that is done."""
    if not row.chapter.stations:
        text = words("no_stations")
        yield Label(x=_STATIONS_LEFT, y=y + _BOX / 2 + 2, text=text, size=_FONT, colour="muted")
    x = _STATIONS_LEFT
    for station in row.chapter.stations:
        pitch, letter = max(station.minutes * scale, _NARROWEST), station.letter
        width = pitch - _GAP
        tooltip = words("station", letter=letter, title=station.title, minutes=station.minutes)
        style = {"radius": 3, "tooltip": tooltip, **_station_style(station.on_path)}
        yield from labelled_box(x, y, width, _BOX, letter, size=_FONT, bold=True, **style)
        yield Rect(x=x, y=y + _BOX + 1, width=row.share(station) * width, height=_STRIP, fill=_DONE)
        x += pitch


def _sentence(row: MapRow) -> str:
    """A row for readers who cannot see the picture."""
    counts = {"tasks": row.count(row.chapter.tasks) or 0, "guesses": row.count(row.chapter.guesses) or 0}
    return words("row", chapter=row.name, minutes=row.minutes or "–", cards=row.cards or 0, **counts)
