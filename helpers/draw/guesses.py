"""Guesses as pictures: numbers beside the truth on a logarithmic axis, choices below, and how a class guessed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, text_width

_LEFT, _RIGHT, _ROW, _TOP, _FONT, _LINE = 340.0, 36.0, 34.0, 76.0, 13.0, 17.0
_LARGEST = 1000.0  # a guess that is further off stands at the axis's end
_TICKS = (1000, 100, 10, 2)
_MOST_LINES = 3  # of a question
_WORD = 150.0  # pixels at the right, for what came of a choice


@dataclass(frozen=True, kw_only=True)
class GuessMark:
    """A row. text: what was asked. ratios: guess over truth, two for a range, none where there is no number; `word`
    then says what came of it. tooltip: the numbers. is_number: it belongs on the axis; a choice or an order does not.
    """

    text: str
    ratios: tuple[float, ...] = ()
    word: str = ""
    tooltip: str = ""
    is_number: bool = True


def guesses_scene(
    marks: Sequence[GuessMark], *, title: str, words: Sequence[str], summary: str, width: float = WIDTH
) -> Scene:
    """One row a question: numbers on the axis, below it choices and orders. words: "too low", "the truth", "too high",
    as they stand over the axis, and what stands over the choices. ValueError without a row.
    """
    if not marks:
        raise ValueError("guesses_scene needs at least one question")
    items = [Label(x=14, y=20, text=title, size=15, bold=True)]
    numbers, others = ([mark for mark in marks if mark.is_number == one] for one in (True, False))
    bottom = 44.0
    if numbers:
        on_axis, bottom = _on_axis(numbers, words, width)
        items += on_axis
    if others:
        items.append(Label(x=14, y=bottom + 8, text=words[-1], size=_FONT, bold=True))
        below, bottom = _below(others, bottom + 26, width)
        items += below
    return Scene(width=width, height=bottom + 4, title=title, summary=summary, items=tuple(items))


def _on_axis(marks: Sequence[GuessMark], words: Sequence[str], width: float) -> tuple[list, float]:
    """The rows of numbers with their axis, and where they end."""
    reach = _reach(ratio for mark in marks for ratio in mark.ratios)
    centre = (_LEFT + width - _RIGHT) / 2
    scale = (width - _RIGHT - _LEFT) / 2 / math.log(reach)
    bottom = _TOP + sum(map(_high, marks))
    items, y = [*_axis(reach, centre, scale, bottom, words, width)], _TOP
    for mark in marks:
        items += _question(mark, y)
        items += _row(mark, y + _high(mark) / 2, centre, scale, reach)
        y += _high(mark)
    return items, bottom + 32


def _below(marks: Sequence[GuessMark], y: float, width: float) -> tuple[list, float]:
    """The rows of choices and orders, and where they end."""
    items: list[Label | Line] = []
    room = width - _WORD - 40
    for mark in marks:
        items.append(Line(x1=14, y1=y, x2=width - 14, y2=y))
        items += _question(mark, y, room)
        items.append(Label(x=width - _WORD, y=y + _high(mark, room) / 2, text=mark.word, size=_FONT))
        y += _high(mark, room)
    return items, y


def _high(mark: GuessMark, room: float = _LEFT - 40) -> float:
    return max(_ROW, _LINE * len(_lines(mark.text, room)) + 10)


def _question(mark: GuessMark, y: float, room: float = _LEFT - 40) -> Iterator[Label]:
    """In as many lines as it needs, in the middle of its row, which begins at y."""
    lines = _lines(mark.text, room)
    for number, line in enumerate(lines):
        at = y + _high(mark, room) / 2 + (number - (len(lines) - 1) / 2) * _LINE
        yield Label(x=14, y=at, text=line, size=_FONT)


def _lines(text: str, room: float) -> list[str]:
    """Broken between words, or in Chinese anywhere; what is too long for the last line ends in "…"."""
    lines = [""]
    pieces = text.split(" ") if " " in text else list(text)
    for piece in pieces:
        longer = f"{lines[-1]}{' ' if ' ' in text and lines[-1] else ''}{piece}"
        if lines[-1] and text_width(longer, _FONT) > room and len(lines) < _MOST_LINES:
            lines.append(piece)
        else:
            lines[-1] = longer
    return [_fitted(line, room) for line in lines]


def _reach(ratios: Iterable[float]) -> float:
    """The factor at the axis's ends."""
    furthest = max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)
    return next((limit for limit in (10.0, 100.0) if furthest <= limit), _LARGEST)


def _axis(
    reach: float, centre: float, scale: float, bottom: float, words: Sequence[str], width: float
) -> Iterator[Label | Line]:
    low, truth, high = words[:3]
    yield Label(x=_LEFT, y=48, text=low, size=_FONT, colour="muted")
    yield Label(x=centre, y=48, text=truth, size=_FONT, anchor="middle", bold=True)
    yield Label(x=width - _RIGHT, y=48, text=high, size=_FONT, anchor="end", colour="muted")
    for times in (factor for factor in _TICKS if factor <= reach):
        for sign, text in ((-1, f"1/{times}"), (1, f"{times} ×")):
            x = centre + sign * math.log(times) * scale
            yield Line(x1=x, y1=_TOP - 8, x2=x, y2=bottom)
            yield Label(x=x, y=bottom + 14, text=text, size=12, anchor="middle", colour="muted")
    yield Line(x1=centre, y1=_TOP - 12, x2=centre, y2=bottom + 2, colour="ink", width=2)
    yield Label(x=centre, y=bottom + 14, text="1", size=12, anchor="middle", colour="muted")


def _row(mark: GuessMark, y: float, centre: float, scale: float, reach: float) -> Iterator[Label | Line | Rect]:
    if not mark.ratios:
        yield Label(x=centre + 12, y=y, text=mark.word, size=_FONT)
        return
    places = [centre + scale * math.log(min(max(ratio, 1 / reach), reach)) for ratio in mark.ratios]
    yield Line(x1=centre, y1=y, x2=places[0], y2=y, colour="communication", width=2, dashed=len(places) > 1)
    if len(places) > 1:
        yield Line(x1=places[0], y1=y, x2=places[-1], y2=y, colour="communication", width=4)
    for x in places:
        look = {"fill": "communication", "stroke": "surface", "radius": 6, "tooltip": mark.tooltip}
        yield Rect(x=x - 6, y=y - 6, width=12, height=12, **look)


def _fitted(text: str, room: float) -> str:
    """The text, or as much of its beginning as fits."""
    if text_width(text, _FONT) <= room:
        return text
    kept = next(end for end in range(len(text), 0, -1) if text_width(text[:end] + "…", _FONT) <= room)
    return text[:kept].rstrip() + "…"


def votes_scene(
    counts: Sequence[tuple[str, int]], *, title: str, right: int | None = None, word: str = "", width: float = WIDTH
) -> Scene:
    """A bar for each answer, as long as it was often given. right: the place of the answer, once it may be seen; `word`
    stands beside it. ValueError without an answer.
    """
    if not counts or max(count for _, count in counts) < 1:
        raise ValueError("votes_scene needs at least one answer")
    scale = (width - _LEFT - 170) / max(count for _, count in counts)
    items: list[Label | Rect] = [Label(x=14, y=20, text=title, size=15, bold=True)]
    for number, (text, count) in enumerate(counts):
        y, is_right = 46 + _ROW * number, number == right
        items.append(
            Label(x=_LEFT - 14, y=y + 11, text=_fitted(text, _LEFT - 28), size=_FONT, anchor="end", bold=is_right)
        )
        fill = "backward" if is_right else "forward"
        items.append(
            Rect(x=_LEFT, y=y, width=count * scale, height=22, fill=fill, radius=2, tooltip=f"{text}: {count}")
        )
        said = f"{count}  ← {word}" if is_right else f"{count}"
        items.append(Label(x=_LEFT + count * scale + 10, y=y + 11, text=said, size=_FONT, bold=is_right))
    summary = "; ".join(f"{text}: {count}" for text, count in counts)
    return Scene(width=width, height=56 + _ROW * len(counts), title=title, summary=summary, items=tuple(items))
