"""One pass over a layer that is cut over ranks, number by number, and what it would take in a layer of real size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from helpers.draw.equations import equations_items, equations_words, legend, say
from helpers.draw.palette import PAINTS
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, text_width
from helpers.predict.by_hand.small_matrices import Pass
from helpers.quantities.units import format_seconds

_HEAD, _BAR, _PITCH, _LEFT, _RIGHT = 32.0, 20.0, 28.0, 130.0, 90.0  # pixels

Bars = Mapping[str, Mapping[str, tuple[str, float]]]


def tensor_split_scene(one: Pass, *, title: str, bars: Bars, bars_title: str, width: float = WIDTH) -> Scene:
    """A row of one process, a row of each rank, and below them `bars`: name -> part -> (kind of the palette, seconds).

    All bars share one scale; each ends with its sum.
    """
    rows = {say("one_process"): one.whole} | {f"rank {rank}": row for rank, row in enumerate(one.by_rank)}
    head, top = heading(title, legend(rows), width)
    items, bottom = equations_items(rows, top + 6, width=width)
    below, height = _bars(bars, bars_title, bottom + 6, width)
    said = [say("row", name=name, says=equations_words(row)) for name, row in rows.items()]
    totals = [f"{name} {format_seconds(_total(parts))}" for name, parts in bars.items()]
    return Scene(
        width=width,
        height=height,
        title=title,
        summary=say("summary", rows=said, title=bars_title, totals=totals),
        items=(*head, *items, *below),
    )


def _total(parts: Mapping[str, tuple[str, float]]) -> float:
    return sum(seconds for _, seconds in parts.values())


def _bars(bars: Bars, title: str, top: float, width: float) -> tuple[list[Rect | Label | Line], float]:
    """The items and the y at which they end."""
    items: list[Rect | Label | Line] = [Line(x1=14, y1=top - 2, x2=width - 14, y2=top - 2)]
    items.append(Label(x=14, y=top + 16, text=title, bold=True))
    scale = (width - _LEFT - _RIGHT) / max(1e-12, *map(_total, bars.values()))
    for number, (name, parts) in enumerate(bars.items()):
        items += _bar(name, parts, top + _HEAD + number * _PITCH, scale)
    return items, top + _HEAD + len(bars) * _PITCH + 2


def _bar(name: str, parts: Mapping[str, tuple[str, float]], y: float, scale: float) -> Iterator[Rect | Label]:
    yield Label(x=_LEFT - 12, y=y + _BAR / 2, text=name, anchor="end")
    x = _LEFT
    for part, (kind, seconds) in parts.items():
        long = seconds * scale
        if long >= 0.5:
            tooltip = f"{name}, {part}: {format_seconds(seconds)}"
            texture = PAINTS[kind].texture if long > 4 else ""
            yield Rect(x=x, y=y, width=max(0.5, long - 1.5), height=_BAR, fill=kind, texture=texture, tooltip=tooltip)
            for text in _fitting(part, seconds, long):
                yield Label(x=x + long / 2, y=y + _BAR / 2, text=text, size=11, anchor="middle", on=kind)
        x += long
    yield Label(x=x + 8, y=y + _BAR / 2, text=format_seconds(_total(parts)), bold=True)


def _fitting(part: str, seconds: float, long: float) -> list[str]:
    """The longest of the words for a part of a bar that fits it, or none."""
    time = format_seconds(seconds)
    return [text for text in (f"{part} {time}", time) if text_width(text, 11) < long - 8][:1]
