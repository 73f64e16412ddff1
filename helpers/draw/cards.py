"""A rank as a card with its place on the mesh, lit in the colour of the axis on which it belongs to the chosen rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from helpers.draw.mesh import axis_look
from helpers.draw.scene import Label, Rect, text_width

CHOSEN = {"fill": "parameters", "stroke": "ink", "stroke_width": 2.5}
_STRIP, _PITCH, _NAME, _SMALL, _HIGH, _LOW = 7.0, 15.0, 13.0, 9.7, 60.0, 31.0  # pixels


def card(
    box: Rect, rank: int, place: Mapping[str, int], axis: str = "", *, size: float = 0.0
) -> Iterator[Rect | Label]:
    """box: where it stands, and how high it is: a line for each axis where there is room, else all in one.

    axis: of the group that it shares with the chosen rank, "chosen" for that rank itself, "" for all others.
    size: of the letters, if not as large as there is room for.
    """
    is_high, is_low = box.height >= _HIGH, box.height < _LOW
    size, strip, pitch = size or (11 if is_high else _SMALL), _STRIP - 3 * is_low, _PITCH - 2 * is_low
    look = CHOSEN if axis == "chosen" else axis_look(axis) if axis else {"fill": "surface", "stroke": "rule"}
    words = ", ".join(f"{name} {number}" for name, number in place.items())
    box = replace(box, tooltip=f"rank {rank}: {words}", **(look | {"texture": ""}))
    yield box
    if look.get("texture"):  # beside the words, which stay easy to read
        yield replace(box, y=box.y + box.height - strip, height=strip, texture=look["texture"], tooltip="")
    x, on = box.x + box.width / 2, look["fill"] if axis else ""
    lines = {name: f"{name} {number}" for name, number in place.items()}
    if not is_high or any(text_width(line, size, bold=True) > box.width for line in lines.values()):
        line = _line(place, box.width - 2, size)
        lines = {"": line} if line else {}
    top = box.y + (box.height - strip) / 2 - pitch * len(lines) / 2 + 2 - 2 * is_low
    name = f"rank {rank}" if text_width(f"rank {rank}", _NAME, bold=True) < box.width - 4 else str(rank)
    yield Label(x=x, y=top, text=name, size=_NAME, anchor="middle", bold=True, on=on)
    for number, (each, line) in enumerate(lines.items(), 1):
        yield Label(x=x, y=top + pitch * number, text=line, size=size, anchor="middle", on=on, bold=each == axis != "")


def _line(place: Mapping[str, int], room: float, size: float) -> str:
    """The whole place in one line, as long as there is room for."""
    named = "  ".join(f"{name} {number}" for name, number in place.items())
    short = (between.join(map(str, place.values())) for between in (", ", ","))
    return next((text for text in (named, *short) if text_width(text, size) < room), "")
