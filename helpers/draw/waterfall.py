"""Draws where the time of a training step goes, as a waterfall: each bar begins where the one above it ends.

`waterfall_scene` shows the measured parts of a step, for chapter 10 and the notebook take_it_to_work. `step_scene`
shows a predicted step, for chapter 11 and the scaling explorer: its terms, such as the matrix products, and the
interval in which the real step is expected to lie. What bounds a term, such as "memory" or "network", gives it its
colour.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from helpers.draw.rows import BarRow, BarStyle, Part, rows_scene
from helpers.draw.scene import Scene
from helpers.learner.words import book
from helpers.predict.time.step import StepTime
from helpers.quantities.units import format_seconds

words = book("steps")  # what a reader sees, by name, in the learner's language: learner/words/steps.yaml

# A part of a step, to the kind of the palette whose colour it has.
PART_KINDS = {"compute": "forward", "communication": "communication", "waiting": "waiting", "data": "data"}
PART_KINDS |= {"host": "other"}
# What bounds a term's seconds, and the term's colour.
BINDS = {"tensor cores": "forward", "memory": "data", "NVLink": "weight_grad", "network": "communication"}
BINDS |= {"waiting": "waiting", "host": "other"}
_SHORTEST = 0.004  # of a step: terms below this share are shown together in one row
_BARS = {"gap": 0, "thinnest": 1, "hidden_below": 0, "radius": 2, "has_background": True}
_MEASURED = BarStyle(height=26, pitch=34, font=13, end_gap=10, right=130, **_BARS)
_PREDICTED = BarStyle(height=18, pitch=28, end_gap=14, above=0, **_BARS)


def waterfall_scene(parts: Mapping[str, float], *, title: str, kinds: Mapping[str, str] = PART_KINDS) -> Scene:
    """A bar for each part. `parts` maps names to seconds, and `kinds` maps them to kinds of the palette.

    Raises ValueError without a part.
    """
    total = sum(parts.values()) or 1.0  # where no part takes time, each share is 0
    rows, start = [], 0.0  # start: where the next bar begins, in seconds
    for name, seconds in parts.items():
        text = f"{format_seconds(seconds)} · {seconds / total:.0%}"
        part = Part(text="", kind=kinds[name], size=seconds, tooltip=f"{name}: {text}")
        rows.append(BarRow(name=name, parts=[part], end=text, start=start))
        start += seconds
    return rows_scene(rows, _MEASURED, title=title, summary=" ".join(f"{row.name}: {row.end}." for row in rows))


class _Term(NamedTuple):
    """A row: its name, its seconds, and what bounds it, which is "" for several short terms and for the entire step."""

    name: str
    seconds: float
    binds: str = ""


def step_scene(step: StepTime, *, title: str) -> Scene:
    """A predicted step: a bar for each term with its seconds, its share and what bounds it, and the step's interval.

    Terms below 0.4 % of the step are shown together in one row.
    """
    terms = _terms(step)
    *starts, _ = accumulate((term.seconds for term in terms[:-1]), initial=0.0)
    rows = [_row(term, start, step) for term, start in zip(terms, [*starts, 0.0], strict=True)]
    # The last row is the entire step; its prediction is uncertain by a factor.
    rows[-1] = replace(rows[-1], is_chosen=True, interval=step.interval if step.factor > 1 else None)
    summary = " ".join(words("row", name=row.name, parts=[row.end]) for row in rows)
    return rows_scene(rows, _PREDICTED, title=title, summary=summary)


def _terms(step: StepTime) -> list[_Term]:
    """The terms in the order of steps.yaml, then one row for all that are too short to see, then the entire step."""
    # Iterating over `words` gives the names of its texts.
    order = [name.removeprefix("term.") for name in words if name.startswith("term.")]
    bars = sorted(step.bars, key=lambda bar: order.index(bar.name) if bar.name in order else len(order))
    short = [bar for bar in bars if bar.seconds < _SHORTEST * step.seconds]
    terms = [_Term(_term_word(bar.name), bar.seconds, bar.binds) for bar in bars if bar not in short]
    if short:
        terms.append(_Term(words("rest", count=len(short)), sum(bar.seconds for bar in short)))
    return [*terms, _Term(words("whole"), step.seconds)]


def _term_word(term: str) -> str:
    """The name of a term as the legend has it."""
    return words(f"term.{term}") if f"term.{term}" in words else term


def _text(term: _Term, step: StepTime) -> str:
    """What stands at the end of the row: seconds, share and what bounds it, or the step's interval."""
    values = {"seconds": format_seconds(term.seconds), "share": term.seconds / step.seconds}
    if not term.seconds:
        return "–"
    if term.binds:
        return words("bar", binds=words(f"binds.{term.binds}"), **values)
    if term.seconds < step.seconds:
        return words("bar_rest", **values)
    low, high = map(format_seconds, step.interval)
    return words("interval", low=low, high=high, **values) if step.factor > 1 else values["seconds"]


def _row(term: _Term, start: float, step: StepTime) -> BarRow:
    """A term in the colour of what bounds it; grey for several short terms and for the entire step."""
    text = _text(term, step)
    tooltip = words("of", name=term.name, text=text)
    part = Part(text="", kind=BINDS.get(term.binds, "rule"), size=term.seconds, tooltip=tooltip)
    return BarRow(name=term.name, parts=[part] if term.seconds else [], end=text, start=start, is_chosen=False)
