"""Draws guesses beside the truth: numbers on a logarithmic axis, choices below, and how a class answered a question.

A guess is a learner's answer to a question before its result is shown. The end of a chapter shows `guesses_scene` for a
learner's own guesses, and a teacher's projector shows `votes_scene`.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from helpers.draw.axis import column_lines
from helpers.draw.rows import BarRow, BarStyle, Part, rows_scene
from helpers.draw.scene import (
    MARGIN,
    TITLE_Y,
    WIDTH,
    Label,
    Line,
    Rect,
    Scene,
    SceneItem,
    centred_label,
    shortened,
    text_width,
)

_LEFT, _RIGHT, _TOP = 340.0, 36.0, 76.0  # pixels: left, right and above the axis of numbers
_ROW, _LINE, _FONT = 34.0, 17.0, 13.0  # pixels: the smallest height of a row, a line of text, the size of letters
_QUESTION_WIDTH = _LEFT - 40  # pixels for a question left of the axis
_OUTCOME_WIDTH = 150.0  # pixels at the right of a choice, for what came of it
_FACTORS = (10.0, 100.0)  # where the axis may end, if no guess is further off
_LARGEST_FACTOR = 1000.0  # a guess that is further off stands at the end of the axis
_TICKS = (1000, 100, 10, 2)  # factors, too low and too high, with a line of the grid
_MOST_LINES = 3  # of a question
_VOTES = BarStyle(height=22, pitch=_ROW, font=_FONT, end_gap=10, gap=0, radius=2, right=170)


@dataclass(frozen=True, kw_only=True)
class GuessMark:
    """A row of `guesses_scene`: a question and what was guessed.

    `ratios` are guess divided by truth: two of them for a range, and none where there is no number; `word` then says
    what came of the guess. `tooltip` has the numbers. `is_number` puts the row on the axis, where a choice or an order
    does not belong.
    """

    text: str
    ratios: tuple[float, ...] = ()
    word: str = ""
    tooltip: str = ""
    is_number: bool = True


def guesses_scene(marks: Sequence[GuessMark], *, title: str, words: Sequence[str], summary: str) -> Scene:
    """One row per question: numbers on the axis, choices and orders below it.

    `words` are four texts: "too low", "the truth" and "too high" as they stand over the axis, and what stands over the
    choices. Raises ValueError without a row.
    """
    if not marks:
        raise ValueError("guesses_scene needs at least one question")
    items: list[SceneItem] = [Label(x=MARGIN, y=TITLE_Y, text=title, size=15, bold=True)]
    numbers = [mark for mark in marks if mark.is_number]
    choices = [mark for mark in marks if not mark.is_number]
    on_axis, bottom = _on_axis(numbers, words) if numbers else ([], 44.0)
    items += on_axis
    if choices:
        items.append(Label(x=MARGIN, y=bottom + 8, text=words[-1], size=_FONT, bold=True))
        below, bottom = _below(choices, bottom + 26)
        items += below
    return Scene(height=bottom + 4, title=title, summary=summary, items=items)


def _on_axis(marks: Sequence[GuessMark], words: Sequence[str]) -> tuple[list, float]:
    """The rows of numbers with their axis, and the y at which they end."""
    end_factor = _end_factor(ratio for mark in marks for ratio in mark.ratios)
    centre = (_LEFT + WIDTH - _RIGHT) / 2
    scale = (WIDTH - _RIGHT - _LEFT) / 2 / math.log(end_factor)  # pixels per unit of the logarithm
    bottom = _TOP + sum(map(_row_height, marks))
    items, y = [*_axis(end_factor, centre, scale, bottom, words)], _TOP
    for mark in marks:
        items += _question(mark, y)
        items += _guess(mark, y + _row_height(mark) / 2, centre, scale, end_factor)
        y += _row_height(mark)
    return items, bottom + 32


def _below(marks: Sequence[GuessMark], y: float) -> tuple[list, float]:
    """The rows of choices and orders, and the y at which they end."""
    items: list[Label | Line] = []
    question_width = WIDTH - _OUTCOME_WIDTH - 40
    for mark in marks:
        height = _row_height(mark, question_width)
        items.append(Line(x1=MARGIN, y1=y, x2=WIDTH - MARGIN, y2=y))
        items += _question(mark, y, question_width)
        items.append(Label(x=WIDTH - _OUTCOME_WIDTH, y=y + height / 2, text=mark.word, size=_FONT))
        y += height
    return items, y


def _row_height(mark: GuessMark, question_width: float = _QUESTION_WIDTH) -> float:
    """As much as the lines of the question need."""
    return max(_ROW, _LINE * len(_lines(mark.text, question_width)) + 10)


def _question(mark: GuessMark, y: float, question_width: float = _QUESTION_WIDTH) -> Iterator[Label]:
    """The question in as many lines as it needs, in the middle of its row, which begins at y."""
    lines = _lines(mark.text, question_width)
    for number, line in enumerate(lines):
        line_y = y + _row_height(mark, question_width) / 2 + (number - (len(lines) - 1) / 2) * _LINE
        yield Label(x=MARGIN, y=line_y, text=line, size=_FONT)


def _lines(text: str, available: float) -> list[str]:
    """The text in lines broken between words, or in Chinese anywhere; the last line is cut where it is too long."""
    lines = [""]
    space = " " if " " in text else ""  # a Chinese text has none
    for piece in text.split(" ") if space else text:
        longer = f"{lines[-1]}{space if lines[-1] else ''}{piece}"
        if lines[-1] and text_width(longer, _FONT) > available and len(lines) < _MOST_LINES:
            lines.append(piece)
        else:
            lines[-1] = longer
    return [shortened(line, available, _FONT) for line in lines]


def _end_factor(ratios: Iterable[float]) -> float:
    """The factor at both ends of the axis: the smallest one of _FACTORS that no guess exceeds, or the largest one."""
    furthest = max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)
    return next((factor for factor in _FACTORS if furthest <= factor), _LARGEST_FACTOR)


def _axis(
    end_factor: float, centre: float, scale: float, bottom: float, words: Sequence[str]
) -> Iterator[Label | Line]:
    """The truth as a line in the middle, and a grid line at each factor too low and too high."""
    too_low, truth, too_high = words[:3]
    yield Label(x=_LEFT, y=48, text=too_low, size=_FONT, colour="muted")
    yield centred_label(centre, 48, truth, _FONT, bold=True)
    yield Label(x=WIDTH - _RIGHT, y=48, text=too_high, size=_FONT, anchor="end", colour="muted")
    for factor in (tick for tick in _TICKS if tick <= end_factor):
        distance = math.log(factor) * scale
        marks = ((centre - distance, f"1/{factor}"), (centre + distance, f"{factor} ×"))
        yield from column_lines(marks, _TOP - 8, bottom, text_gap=14, size=12)
    yield Line(x1=centre, y1=_TOP - 12, x2=centre, y2=bottom + 2, colour="ink", width=2)
    yield centred_label(centre, bottom + 14, "1", colour="muted")


def _guess(mark: GuessMark, y: float, centre: float, scale: float, end_factor: float) -> Iterator[Label | Line | Rect]:
    """A dot per ratio and a line from the truth; a range has two dots with a thick line between them."""
    if not mark.ratios:
        yield Label(x=centre + 12, y=y, text=mark.word, size=_FONT)
        return
    # Where each ratio lies; one beyond the axis lies at its end.
    xs = [centre + scale * math.log(min(max(ratio, 1 / end_factor), end_factor)) for ratio in mark.ratios]
    is_range = len(xs) > 1
    yield Line(x1=centre, y1=y, x2=xs[0], y2=y, colour="communication", width=2, dashed=is_range)
    if is_range:
        yield Line(x1=xs[0], y1=y, x2=xs[-1], y2=y, colour="communication", width=4)
    for x in xs:
        style = {"fill": "communication", "stroke": "surface", "radius": 6, "tooltip": mark.tooltip}
        yield Rect(x=x - 6, y=y - 6, width=12, height=12, **style)


def votes_scene(counts: Sequence[tuple[str, int]], *, title: str, right: int | None = None, word: str = "") -> Scene:
    """A bar for each answer, as long as it was given often; `counts` lists (answer, how often).

    `right` is the index of the right answer, once it may be seen; `word` stands beside its bar. Raises ValueError
    without an answer.
    """
    rows = []
    for number, (answer, count) in enumerate(counts):
        is_right = number == right
        # The kinds stand for their colours alone: green for the right answer, blue for the others.
        kind, tooltip = "backward" if is_right else "forward", f"{answer}: {count}"
        end = f"{count}  ← {word}" if is_right else f"{count}"
        part = Part(text="", kind=kind, size=count, tooltip=tooltip)
        rows.append(BarRow(name=shortened(answer, _LEFT - 28, _FONT), parts=[part], end=end, is_chosen=is_right))
    return rows_scene(rows, _VOTES, title=title, summary="; ".join(f"{answer}: {count}" for answer, count in counts))
