"""Copies of a model over the rounds of a run: who was there, what was done in vain, who was healed by whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from helpers.draw.palette import kind_style
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading
from helpers.learner.words import book

say = book("healing")
_LEFT, _ROW, _RIGHT = 84.0, 38.0, 16.0
_LOOKS = {"done": "forward", "vain": "waiting", "healed": "communication"}


def healing_scene(rounds: Sequence[Any], *, title: str, width: float = WIDTH) -> Scene:
    """A row per copy, a column per round (helpers/elastic/healing: Round). An arrow leads from the copy that heals to
    the one that is healed. Below: the step, and of how many samples it was. ValueError without a round."""
    if not rounds:
        raise ValueError("healing_scene got no round; give the rounds of a run")
    legend = [(say(name), kind_style(kind)) for name, kind in _LOOKS.items()]
    items, top = heading(title, legend, width)
    copies = sorted({copy for told in rounds for copy in told.members})
    rows = {copy: top + 10 + place * _ROW for place, copy in enumerate(copies)}
    pitch, foot = (width - _LEFT - _RIGHT) / len(rounds), top + 22 + len(copies) * _ROW
    for copy, y in rows.items():
        items += [Label(x=14, y=y + 13, text=say("copy", copy=copy))]
        items += [Line(x1=_LEFT, y1=y + 13, x2=width - _RIGHT, y2=y + 13, dashed=True)]
    for place, told in enumerate(rounds):
        items += _column(told, rows, _LEFT + place * pitch, pitch)
        for y, text in ((foot, f"{told.step + 1}"), (foot + 18, f"{told.samples}" if told.done else "–")):
            items.append(Label(x=_LEFT + (place + 0.5) * pitch, y=y, text=text, anchor="middle"))
    for y, name in ((foot, "step"), (foot + 18, "samples")):
        items.append(Label(x=14, y=y, text=say(name), colour="muted"))
    summary = " ".join(_said(rounds, copy) for copy in copies)
    return Scene(width=width, height=foot + 34, title=title, summary=summary, items=tuple(items))


def _column(told: Any, rows: dict[int, float], x: float, pitch: float) -> Iterator[Rect | Line]:
    for copy in told.members:
        name = "done" if copy in told.done else "vain"
        tip = f"{say('copy', copy=copy)} · {say('step')} {told.step + 1} · {say(name)}"
        yield Rect(x=x + 2, y=rows[copy], width=pitch - 4, height=26, radius=2, tooltip=tip, **kind_style(_LOOKS[name]))
    for copy in told.behind:
        down = rows[copy] > rows[told.source]
        start, end = rows[told.source] + 26 * down, rows[copy] + 26 * (not down)
        yield Rect(x=x + 2, y=rows[copy], width=7, height=26, fill=_LOOKS["healed"])
        yield Line(x1=x + 5, y1=start, x2=x + 5, y2=end, colour=_LOOKS["healed"], width=3, arrow=True)


def _said(rounds: Sequence[Any], copy: int) -> str:
    healed = "".join(say("before", source=one.source, step=one.step + 1) for one in rounds if copy in one.behind)
    num, steps = sum(copy in told.done for told in rounds), sum(bool(told.done) for told in rounds)
    return say("row", copy=copy, num=num, all=steps, healed=healed)
