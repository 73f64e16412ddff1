"""Draws where the time of a training step goes, as a waterfall: each bar begins where the one above it ends.

`waterfall_scene` shows the measured parts of a step, for chapter 10 and take_it_to_work; `step_scene` shows the terms
of one or two predicted steps, for chapter 11 and the scaling explorer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from helpers.draw.palette import kind_style
from helpers.draw.scene import MARGIN, WIDTH, Label, Line, Rect, Scene, text_width, title_label
from helpers.learner.words import book
from helpers.predict.time.step import StepTime
from helpers.quantities.units import format_seconds

words = book("steps")

PART_KINDS = {"compute": "forward", "communication": "communication", "waiting": "waiting", "data": "data"}
PART_KINDS |= {"host": "other"}
_TOP, _BAR, _PITCH, _RIGHT = 44.0, 26.0, 34.0, 130.0  # pixels: above, a bar's height, from bar to bar, right of them
# What bounds a term's seconds, and the term's colour.
BINDS = {"tensor cores": "forward", "memory": "data", "NVLink": "weight_grad", "network": "communication"}
BINDS |= {"waiting": "waiting", "host": "other"}
_SINGLE_BAR, _DOUBLE_BAR, _GAP = 20.0, 15.0, 8.0  # pixels: a bar of one step, a bar of two steps, between two rows
_SHORTEST = 0.004  # of a step: terms below this share are shown together in one row


def waterfall_scene(parts: Mapping[str, float], *, title: str) -> Scene:
    """A bar for each part; `parts` maps names of PART_KINDS to seconds. Raises ValueError if no part is above 0."""
    total = sum(parts.values())
    if not total > 0:
        raise ValueError(f"waterfall_scene got {dict(parts)!r}: give at least one part of more than 0 seconds")
    left = 28 + max(text_width(name, 13) for name in parts)
    scale, x = (WIDTH - left - _RIGHT) / total, left
    items: list[Label | Rect] = [title_label(title)]
    sentences = []
    for number, (name, seconds) in enumerate(parts.items()):
        y, text = _TOP + number * _PITCH, f"{format_seconds(seconds)} · {seconds / total:.0%}"
        items.append(Label(x=left - 12, y=y + _BAR / 2, text=name, size=13, anchor="end"))
        items.append(Rect(x=left, y=y, width=total * scale, height=_BAR, fill="panel"))
        style = {**kind_style(PART_KINDS[name]), "radius": 2, "tooltip": f"{name}: {text}"}
        items.append(Rect(x=x, y=y, width=max(1.0, seconds * scale), height=_BAR, **style))
        x += seconds * scale
        items.append(Label(x=left + total * scale + 10, y=y + _BAR / 2, text=text, size=13, bold=True))
        sentences.append(f"{name}: {text}.")
    height = _TOP + len(parts) * _PITCH
    return Scene(width=WIDTH, height=height, title=title, summary=" ".join(sentences), items=tuple(items))


class _Term(NamedTuple):
    """A row: its name, its seconds in each of the steps, and what bounds it.

    `binds` is "" for several short terms together and for the entire step.
    """

    name: str
    seconds: tuple[float, ...]
    binds: str = ""


def step_scene(
    step: StepTime, *, title: str, beside: StepTime | None = None, names: tuple[str, str] = ("1", "2")
) -> Scene:
    """A predicted step: a bar for each term with its seconds, its share and what bounds it, and the step's interval.

    `beside` is another step, whose bars lie below the first one's on the same scale; `names` are the names of the two.
    Terms below 0.4 % of each step are shown together in one row.
    """
    steps = (step,) if beside is None else (step, beside)
    terms, bar = _terms(steps), _SINGLE_BAR if beside is None else _DOUBLE_BAR
    texts = [_texts(term, steps) for term in terms]
    left = 28 + max(text_width(term.name, 12, bold=not term.binds) for term in terms)
    texts_left = WIDTH - 10 - max(text_width(text, 12, bold=True) for of_term in texts for text in of_term)
    right = texts_left - 14
    scale = (right - left) / max(each.interval[1] for each in steps)
    items: list[Label | Line | Rect] = [title_label(title)]
    y = 36.0
    if beside:
        items.append(Label(x=MARGIN, y=42, text=words("beside", upper=names[0], lower=names[1]), colour="muted"))
        y += 20
    starts = [left] * len(steps)
    for term, of_term in zip(terms, texts, strict=True):
        is_total = term is terms[-1]
        items.append(Rect(x=left, y=y, width=right - left, height=bar * len(steps) - 2, fill="panel"))
        middle = y + bar * len(steps) / 2
        items.append(Label(x=left - 12, y=middle, text=term.name, anchor="end", bold=is_total))
        for number, seconds in enumerate(term.seconds):
            x, bar_y = left if is_total else starts[number], y + bar * number
            starts[number] += seconds * scale
            if seconds:
                items.append(_bar(term, x, bar_y, max(1.0, seconds * scale), bar - 2, of_term[number]))
            items.append(Label(x=texts_left, y=bar_y + bar / 2 - 1, text=of_term[number], bold=is_total))
            if is_total and steps[number].factor > 1:
                items += _whisker([left + end * scale for end in steps[number].interval], bar_y + bar / 2 - 1)
        y += bar * len(steps) + _GAP
    sentences = [words("row", name=term.name, parts=of_term) for term, of_term in zip(terms, texts, strict=True)]
    return Scene(width=WIDTH, height=y, title=title, summary=" ".join(sentences), items=tuple(items))


def _terms(steps: Sequence[StepTime]) -> list[_Term]:
    """The terms in the order of the words, then those too short to be seen together, then the entire step."""
    seconds_by_step = [{bar.name: bar.seconds for bar in step.bars} for step in steps]
    binds = {bar.name: bar.binds for step in steps for bar in step.bars}
    order = [name.removeprefix("term.") for name in words if name.startswith("term.")]
    names = sorted(binds, key=lambda name: order.index(name) if name in order else len(order))
    least = _SHORTEST * min(step.seconds for step in steps)
    short = [name for name in names if all(seconds.get(name, 0.0) < least for seconds in seconds_by_step)]
    terms = [
        _Term(_term_word(name), tuple(seconds.get(name, 0.0) for seconds in seconds_by_step), binds[name])
        for name in names
        if name not in short
    ]
    if short:
        together = tuple(sum(seconds.get(name, 0.0) for name in short) for seconds in seconds_by_step)
        terms.append(_Term(words("rest", count=len(short)), together))
    return [*terms, _Term(words("whole"), tuple(step.seconds for step in steps))]


def _term_word(term: str) -> str:
    return words(f"term.{term}") if f"term.{term}" in words else term


def _texts(term: _Term, steps: Sequence[StepTime]) -> list[str]:
    """What stands at the end of the row for each step: seconds, share and what bounds it, or the step's interval."""
    texts = []
    for seconds, step in zip(term.seconds, steps, strict=True):
        values = {"seconds": format_seconds(seconds), "share": seconds / step.seconds}
        if not seconds:
            texts.append("–")
        elif term.binds:
            texts.append(words("bar", binds=words(f"binds.{term.binds}"), **values))
        elif seconds < step.seconds:
            texts.append(words("bar_rest", **values))
        else:
            low, high = map(format_seconds, step.interval)
            interval = words("interval", low=low, high=high, **values)
            texts.append(interval if step.factor > 1 else values["seconds"])
    return texts


def _bar(term: _Term, x: float, y: float, width: float, height: float, text: str) -> Rect:
    style = kind_style(BINDS[term.binds]) if term.binds in BINDS else {"fill": "rule"}
    tooltip = words("of", name=term.name, text=text)
    return Rect(x=x, y=y, width=width, height=height, radius=2, tooltip=tooltip, **style)


def _whisker(ends: Sequence[float], y: float) -> Iterator[Line]:
    """An interval as a line, with a stroke at each end."""
    yield Line(x1=ends[0], y1=y, x2=ends[1], y2=y, colour="ink", width=2)
    for x in ends:
        yield Line(x1=x, y1=y - 5, x2=x, y2=y + 5, colour="ink", width=2)
