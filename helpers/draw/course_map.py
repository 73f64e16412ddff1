"""The course as a map: a row for each chapter, its stations as wide as their minutes, what is done, what is due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, text_width
from helpers.learner.course import Chapter, Station
from helpers.learner.words import book

say = book("course")
_PITCH, _BOX, _STRIP, _GAP, _FONT = 36.0, 20.0, 4.0, 2.0, 12.0  # pixels
_NUMBER, _TITLE, _BAR, _BAR_END = 14.0, 40.0, 236.0, 520.0  # where a column begins
_COLUMNS = {"minutes": 594.0, "tasks": 656.0, "guesses": 718.0, "cards": 790.0}  # where it ends
_DONE = "activations"  # orange: neither green nor another blue stands out from the path's blue
_HOUR = 65  # minutes as wide as the column, unless a chapter has more


@dataclass(frozen=True, kw_only=True)
class MapRow:
    """A chapter of the map. done: keys that were guessed or passed; None: nobody's map, which shows totals alone.

    cards: how many are due, as it is to be shown.
    """

    chapter: Chapter
    done: frozenset[str] | None = None
    cards: str = ""

    @property
    def name(self) -> str:
        """ "08 ZeRO"."""
        return f"{self.chapter.number} {self.chapter.title}".strip()

    @property
    def minutes(self) -> str:
        return f"{self.chapter.path_minutes} / {self.chapter.minutes}" if self.chapter.stations else ""

    def count(self, keys: Sequence[str]) -> str:
        """ "2 of 6", on nobody's map "6"; "" where there are none."""
        if not keys or self.done is None:
            return str(len(keys) or "")
        return say("of", done=len(self.done & set(keys)), all=len(keys))

    def share(self, station: Station) -> float:
        """How much of a station is guessed and written, 0 to 1."""
        keys = {*station.guesses, *station.exercises}
        return len(keys & (self.done or set())) / len(keys) if keys else 0.0


def course_map_scene(rows: Sequence[MapRow], *, week: Sequence[str] = (), width: float = WIDTH) -> Scene:
    """A Scene of the chapters in order; week: the advised order of their numbers. ValueError where there is no row."""
    if not rows:
        raise ValueError(say("nowhere"))
    looks = {"path": _look(True), "deeper": _look(False), "done": {"fill": _DONE}}
    head, top = heading(say("title"), [(say(name), look) for name, look in looks.items()], width)
    top += 30
    scale = (_BAR_END - _BAR) / max(_HOUR, *(row.chapter.minutes for row in rows))
    items: list[Rect | Label | Line] = [*head, *_header(top - 14)]
    for place, row in enumerate(rows):
        items += _row(row, top + place * _PITCH, scale, width)
    bottom = top + len(rows) * _PITCH
    if week:
        said = say("week", order=" → ".join(week))
        items.append(Label(x=_NUMBER, y=bottom + 16, text=said, size=_FONT))
    summary = " ".join([*map(_said, rows), say("week", order=" → ".join(week)) if week else ""]).strip()
    return Scene(width=width, height=bottom + 34, title=say("title"), summary=summary, items=tuple(items))


def _look(on_path: bool) -> dict[str, str]:
    return {"fill": "forward"} if on_path else {"fill": "panel", "stroke": "muted"}


def _header(y: float) -> Iterator[Label]:
    for name, x in {"chapter": _NUMBER, "stations": _BAR}.items():
        yield Label(x=x, y=y, text=say(name), size=_FONT, colour="muted")
    for name, x in _COLUMNS.items():
        yield Label(x=x, y=y, text=say(name), size=_FONT, anchor="end", colour="muted")


def _row(row: MapRow, y: float, scale: float, width: float) -> Iterator[Rect | Label | Line]:
    yield Line(x1=_NUMBER, y1=y, x2=width - 10, y2=y)
    middle = y + _PITCH / 2
    yield Label(x=_NUMBER, y=middle, text=row.chapter.number, size=_FONT, bold=True)
    left = _TITLE if row.chapter.number else _NUMBER
    yield Label(x=left, y=middle, text=_fitting(row.chapter.title, _BAR - left - 8), size=_FONT)
    yield from _stations(row, y + (_PITCH - _BOX - _STRIP - 1) / 2, scale)
    values = (row.minutes, row.count(row.chapter.tasks), row.count(row.chapter.guesses), row.cards)
    for text, x in zip(values, _COLUMNS.values(), strict=True):
        yield Label(x=x, y=middle, text=text, size=_FONT, anchor="end")


def _stations(row: MapRow, y: float, scale: float) -> Iterator[Rect | Label]:
    if not row.chapter.stations:
        yield Label(x=_BAR, y=y + _BOX / 2 + 2, text=say("no_stations"), size=_FONT, colour="muted")
    x = _BAR
    for one in row.chapter.stations:
        wide = one.minutes * scale - _GAP
        tooltip = say("station", letter=one.letter, title=one.title, minutes=one.minutes)
        yield Rect(x=x, y=y, width=wide, height=_BOX, radius=3, tooltip=tooltip, **_look(one.on_path))
        on = "forward" if one.on_path else ""
        yield Label(x=x + wide / 2, y=y + _BOX / 2, text=one.letter, size=_FONT, anchor="middle", on=on, bold=True)
        yield Rect(x=x, y=y + _BOX + 1, width=row.share(one) * wide, height=_STRIP, fill=_DONE)
        x += one.minutes * scale


def _fitting(text: str, room: float) -> str:
    """The title, or what comes before its colon, or as much of it as there is room for."""
    if text_width(text, _FONT) <= room:
        return text
    text = text.partition(":")[0]
    if text_width(text, _FONT) <= room:
        return text
    while text and text_width(text + "…", _FONT) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def _said(row: MapRow) -> str:
    counts = {"tasks": row.count(row.chapter.tasks) or 0, "guesses": row.count(row.chapter.guesses) or 0}
    return say("row", chapter=row.name, minutes=row.minutes or "–", cards=row.cards or 0, **counts)
