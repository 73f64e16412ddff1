"""A step as a waterfall: a bar for each part, which begins where the one above it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from helpers.draw.palette import PAINTS
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, text_width
from helpers.learner.words import book
from helpers.predict.time.step import StepTime
from helpers.quantities.units import format_seconds

say = book("steps")

PART_KINDS = {"compute": "forward", "communication": "communication", "waiting": "waiting", "data": "data"}
PART_KINDS |= {"host": "other"}
_TOP, _BAR, _PITCH, _RIGHT = 44.0, 26.0, 34.0, 130.0
# What sets a term's seconds, and its paint.
BINDS = {"tensor cores": "forward", "memory": "data", "NVLink": "weight_grad", "network": "communication"}
BINDS |= {"waiting": "waiting", "host": "other"}
_TERM, _THIN, _GAP, _LEAST = 20.0, 15.0, 8.0, 0.004  # pixels of a bar, of one of two, between rows; a share of a step


def waterfall_scene(parts: Mapping[str, float], *, title: str) -> Scene:
    """parts: name -> seconds; a name of PART_KINDS. ValueError unless one of them is above 0."""
    whole = sum(parts.values())
    if not whole > 0:
        raise ValueError(f"waterfall_scene got {dict(parts)!r}: give at least one part of more than 0 seconds")
    left = 28 + max(text_width(name, 13) for name in parts)
    scale, x = (WIDTH - left - _RIGHT) / whole, left
    items: list[Label | Rect] = [Label(x=14, y=20, text=title, size=14, bold=True)]
    said = []
    for number, (name, seconds) in enumerate(parts.items()):
        y, kind, text = _TOP + number * _PITCH, PART_KINDS[name], f"{format_seconds(seconds)} · {seconds / whole:.0%}"
        items.append(Label(x=left - 12, y=y + _BAR / 2, text=name, size=13, anchor="end"))
        items.append(Rect(x=left, y=y, width=whole * scale, height=_BAR, fill="panel"))
        look = {"fill": kind, "texture": PAINTS[kind].texture, "radius": 2, "tooltip": f"{name}: {text}"}
        items.append(Rect(x=x, y=y, width=max(1.0, seconds * scale), height=_BAR, **look))
        x += seconds * scale
        items.append(Label(x=left + whole * scale + 10, y=y + _BAR / 2, text=text, size=13, bold=True))
        said.append(f"{name}: {text}.")
    height = _TOP + len(parts) * _PITCH
    return Scene(width=WIDTH, height=height, title=title, summary=" ".join(said), items=tuple(items))


class _Row(NamedTuple):
    """A term in each of the steps. binds: what sets its seconds; "" for several terms together and the whole step."""

    name: str
    seconds: tuple[float, ...]
    binds: str = ""


def step_scene(
    step: StepTime, *, title: str, beside: StepTime | None = None, names: tuple[str, str] = ("1", "2")
) -> Scene:
    """A predicted step: a bar for each term with its seconds, share and what binds, and the whole step's interval.

    beside: another step, whose bars lie below the first one's on the same scale; names: of the two. Terms below 0.4 %
    of each step are one row.
    """
    steps = (step,) if beside is None else (step, beside)
    rows, high = _rows(steps), _TERM if beside is None else _THIN
    texts = [_texts(row, steps) for row in rows]
    left = 28 + max(text_width(row.name, 12, bold=not row.binds) for row in rows)
    end = WIDTH - 10 - max(text_width(text, 12, bold=True) for both in texts for text in both)
    scale = (end - 14 - left) / max(one.interval[1] for one in steps)
    items: list[Label | Line | Rect] = [Label(x=14, y=20, text=title, size=14, bold=True)]
    if beside:
        items.append(Label(x=14, y=42, text=say("beside", upper=names[0], lower=names[1]), colour="muted"))
    starts, y = [left] * len(steps), 36.0 + 20 * (beside is not None)
    for row, said in zip(rows, texts, strict=True):
        is_whole = row is rows[-1]
        items.append(Rect(x=left, y=y, width=end - 14 - left, height=high * len(steps) - 2, fill="panel"))
        middle = y + high * len(steps) / 2
        items.append(Label(x=left - 12, y=middle, text=row.name, anchor="end", bold=is_whole))
        for place, seconds in enumerate(row.seconds):
            x, at = left if is_whole else starts[place], y + high * place
            starts[place] += seconds * scale
            if seconds:
                items.append(_bar(row, x, at, max(1.0, seconds * scale), high - 2, said[place]))
            items.append(Label(x=end, y=at + high / 2 - 1, text=said[place], bold=is_whole))
            if is_whole and steps[place].factor > 1:
                items += _whisker([left + each * scale for each in steps[place].interval], at + high / 2 - 1)
        y += high * len(steps) + _GAP
    told = [say("row", name=row.name, parts=said) for row, said in zip(rows, texts, strict=True)]
    return Scene(width=WIDTH, height=y, title=title, summary=" ".join(told), items=tuple(items))


def _rows(steps: Sequence[StepTime]) -> list[_Row]:
    """The terms in the order of the words, then those too short to be seen together, then the whole step."""
    taken = [{bar.name: bar.seconds for bar in step.bars} for step in steps]
    binds = {bar.name: bar.binds for step in steps for bar in step.bars}
    order = [name.removeprefix("term.") for name in say if name.startswith("term.")]
    found = sorted(binds, key=lambda name: order.index(name) if name in order else len(order))
    least = _LEAST * min(step.seconds for step in steps)
    short = [name for name in found if all(each.get(name, 0.0) < least for each in taken)]
    rows = [_Row(_word(n), tuple(each.get(n, 0.0) for each in taken), binds[n]) for n in found if n not in short]
    if short:
        together = tuple(sum(each.get(name, 0.0) for name in short) for each in taken)
        rows.append(_Row(say("rest", count=len(short)), together))
    return [*rows, _Row(say("whole"), tuple(step.seconds for step in steps))]


def _word(term: str) -> str:
    return say(f"term.{term}") if f"term.{term}" in say else term


def _texts(row: _Row, steps: Sequence[StepTime]) -> list[str]:
    """What stands at the end of the row for each step: seconds, share and what binds, or the step's interval."""
    said = []
    for seconds, step in zip(row.seconds, steps, strict=True):
        values = {"seconds": format_seconds(seconds), "share": seconds / step.seconds}
        if not seconds:
            said.append("–")
        elif row.binds:
            said.append(say("bar", binds=say(f"binds.{row.binds}"), **values))
        elif seconds < step.seconds:
            said.append(say("bar_rest", **values))
        else:
            low, high = map(format_seconds, step.interval)
            said.append(say("interval", low=low, high=high, **values) if step.factor > 1 else values["seconds"])
    return said


def _bar(row: _Row, x: float, y: float, long: float, high: float, text: str) -> Rect:
    kind, tooltip = BINDS.get(row.binds, ""), say("of", name=row.name, text=text)
    fill, texture = (kind, PAINTS[kind].texture) if kind else ("rule", "")
    return Rect(x=x, y=y, width=long, height=high, radius=2, fill=fill, texture=texture, tooltip=tooltip)


def _whisker(ends: Sequence[float], y: float) -> Iterator[Line]:
    """An interval, with a stroke at each end."""
    yield Line(x1=ends[0], y1=y, x2=ends[1], y2=y, colour="ink", width=2)
    for x in ends:
        yield Line(x1=x, y1=y - 5, x2=x, y2=y + 5, colour="ink", width=2)
