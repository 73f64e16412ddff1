"""Draws where the time of a training step goes, as a waterfall: each bar begins where the one above it ends.

`waterfall_scene` shows the measured parts of a step, for chapter 10 and the notebook take_it_to_work. `step_scene`
shows a predicted step, for chapter 11 and the scaling explorer: its terms, such as the matrix products, and the
interval in which the real step is expected to lie. What bounds a term, such as "memory" or "network", gives it its
colour.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from helpers.draw.palette import kind_style
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, SceneItem, text_width, title_label
from helpers.learner.words import book
from helpers.predict.time.step import StepTime
from helpers.quantities.units import format_seconds

words = book("steps")  # what a reader sees, by name, in the learner's language: learner/words/steps.yaml

# A part of a step, to the kind of the palette whose colour it has.
PART_KINDS = {"compute": "forward", "communication": "communication", "waiting": "waiting", "data": "data"}
PART_KINDS |= {"host": "other"}
_TOP, _BAR, _PITCH, _RIGHT = 44.0, 26.0, 34.0, 130.0  # pixels: above, a bar's height, from bar to bar, right of them
# What bounds a term's seconds, and the term's colour.
BINDS = {"tensor cores": "forward", "memory": "data", "NVLink": "weight_grad", "network": "communication"}
BINDS |= {"waiting": "waiting", "host": "other"}
_STEP_TOP, _STEP_BAR, _STEP_PITCH = 36.0, 20.0, 28.0  # the same pixels of step_scene
_SHORTEST = 0.004  # of a step: terms below this share are shown together in one row


def waterfall_scene(parts: Mapping[str, float], *, title: str, kinds: Mapping[str, str] = PART_KINDS) -> Scene:
    """A bar for each part. `parts` maps names to seconds, and `kinds` maps them to kinds of the palette.

    Raises ValueError if no part is above 0.
    """
    total = sum(parts.values())
    if not total > 0:
        raise ValueError(f"waterfall_scene got {dict(parts)!r}: give at least one part of more than 0 seconds")
    left = 28 + max(text_width(name, 13) for name in parts)
    # scale: pixels per second. x: where the next bar begins.
    scale, x = (WIDTH - left - _RIGHT) / total, left
    items: list[SceneItem] = [title_label(title)]
    sentences = []
    for number, (name, seconds) in enumerate(parts.items()):
        y, text = _TOP + number * _PITCH, f"{format_seconds(seconds)} · {seconds / total:.0%}"
        items.append(Label(x=left - 12, y=y + _BAR / 2, text=name, size=13, anchor="end"))
        items.append(Rect(x=left, y=y, width=total * scale, height=_BAR, fill="panel"))
        style = {**kind_style(kinds[name]), "radius": 2, "tooltip": f"{name}: {text}"}
        items.append(Rect(x=x, y=y, width=max(1.0, seconds * scale), height=_BAR, **style))
        x += seconds * scale
        items.append(Label(x=left + total * scale + 10, y=y + _BAR / 2, text=text, size=13, bold=True))
        sentences.append(f"{name}: {text}.")
    return Scene(height=_TOP + len(parts) * _PITCH, title=title, summary=" ".join(sentences), items=items)


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
    texts = [_text(term, step) for term in terms]
    left = 28 + max(text_width(term.name, 12, bold=not term.binds) for term in terms)
    texts_left = WIDTH - 10 - max(text_width(text, 12, bold=True) for text in texts)
    right = texts_left - 14
    # scale: pixels per second, with which the upper end of the interval fits. x: where the next bar begins.
    scale, x = (right - left) / step.interval[1], left
    items: list[SceneItem] = [title_label(title)]
    for number, (term, text) in enumerate(zip(terms, texts, strict=True)):
        is_total, y = term is terms[-1], _STEP_TOP + number * _STEP_PITCH
        middle = y + _STEP_BAR / 2
        items.append(Rect(x=left, y=y, width=right - left, height=_STEP_BAR - 2, fill="panel"))  # behind the bar
        items.append(Label(x=left - 12, y=middle, text=term.name, anchor="end", bold=is_total))
        if term.seconds:
            items.append(_bar(term, left if is_total else x, y, max(1.0, term.seconds * scale), text))
        items.append(Label(x=texts_left, y=middle - 1, text=text, bold=is_total))
        x += term.seconds * scale
    if step.factor > 1:  # the prediction is uncertain by this factor; `middle` is that of the last row, the entire step
        items += _whisker([left + end * scale for end in step.interval], middle - 1)
    summary = " ".join(words("row", name=term.name, parts=[text]) for term, text in zip(terms, texts, strict=True))
    return Scene(height=_STEP_TOP + len(terms) * _STEP_PITCH, title=title, summary=summary, items=items)


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


def _bar(term: _Term, x: float, y: float, width: float, text: str) -> Rect:
    """The bar of a term in the colour of what bounds it; grey for several short terms and for the entire step."""
    style = kind_style(BINDS[term.binds]) if term.binds in BINDS else {"fill": "rule"}
    tooltip = words("of", name=term.name, text=text)
    return Rect(x=x, y=y, width=width, height=_STEP_BAR - 2, radius=2, tooltip=tooltip, **style)


def _whisker(ends: Sequence[float], y: float) -> Iterator[Line]:
    """An interval as a line, with a stroke at each end."""
    yield Line(x1=ends[0], y1=y, x2=ends[1], y2=y, colour="ink", width=2)
    for x in ends:
        yield Line(x1=x, y1=y - 5, x2=x, y2=y + 5, colour="ink", width=2)
