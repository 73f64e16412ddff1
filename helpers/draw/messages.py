"""Messages in the order in which they were sent: a row of boxes for each program, one box a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from helpers.draw.palette import PAINTS
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.learner.words import book
from helpers.quantities.units import format_bytes

say = book("pictures")
_LINE, _APART, _RIGHT = 17.0, 12.0, 14.0  # pixels: a line of text, between rows


@dataclass(frozen=True, kw_only=True)
class Message:
    """verb: "gather"; it may be broken behind a hyphen. what: "layer 0". kind: of the palette, what is carried."""

    verb: str
    what: str
    kind: str
    num_bytes: int


def zero_messages(log: Sequence[tuple[str, int, int]]) -> list[Message]:
    """Of (operation, layer, bytes), as `helpers.chapters.zero.walk` gives them."""
    looks = {"all_gather": ("gather", "parameters"), "reduce_scatter": ("reduce-scatter", "gradients")}
    return [
        Message(verb=looks[op][0], what=f"layer {layer}", kind=looks[op][1], num_bytes=size) for op, layer, size in log
    ]


def messages_scene(
    rows: Mapping[str, Sequence[Message]], *, parts: Mapping[str, int], title: str, width: float = WIDTH
) -> Scene:
    """rows: a name to its messages in order. parts: names of stretches, "forward": 3, which stand above the boxes."""
    longest = max((len(messages) for messages in rows.values()), default=0)
    if not longest or sum(parts.values()) != longest:
        raise ValueError(f"messages_scene: parts of {dict(parts)} messages, but the longest row has {longest}")
    kinds = list(dict.fromkeys(one.kind for messages in rows.values() for one in messages))
    head, top = heading(title, kinds_legend(kinds), width)
    left = 26 + max(text_width(name, 13) for name in rows)
    step = (width - left - _RIGHT) / longest
    high = 12 + _LINE * max(len(_lines(one)) for messages in rows.values() for one in messages)
    items: list[Rect | Label | Line] = [*head, *_parts(parts, left, step, top + 12)]
    for number, (name, messages) in enumerate(rows.items()):
        y = top + 30 + number * (high + _APART)
        items.append(Label(x=left - 12, y=y + high / 2, text=name, size=13, anchor="end"))
        for place, one in enumerate(messages):
            items += _box(one, left + place * step, y, step - 4, high)
    summary = " ".join(
        say("messages.row", name=name, said=[f"{one.verb} {one.what}" for one in messages])
        for name, messages in rows.items()
    )
    height = top + 30 + len(rows) * (high + _APART)
    return Scene(width=width, height=height, title=title, summary=summary, items=tuple(items))


def _parts(parts: Mapping[str, int], left: float, step: float, y: float) -> Iterator[Label | Line]:
    for name, count in parts.items():
        right = left + count * step
        yield Line(x1=left, y1=y + 10, x2=right - 4, y2=y + 10, colour="muted", width=1.5)
        yield Label(x=(left + right) / 2 - 2, y=y, text=name, size=12, anchor="middle", colour="muted", bold=True)
        left = right


def _lines(one: Message) -> list[str]:
    """ "reduce-", "scatter", "layer 2"."""
    return [*one.verb.replace("-", "-\n").split("\n"), one.what]


def _box(one: Message, x: float, y: float, wide: float, high: float) -> Iterator[Rect | Label]:
    look = {"radius": 4, "fill": one.kind, "texture": PAINTS[one.kind].texture}
    tooltip = f"{one.verb} {one.what} · {format_bytes(one.num_bytes)}"
    yield Rect(x=x, y=y, width=wide, height=high, tooltip=tooltip, **look)
    lines = _lines(one)
    for place, text in enumerate(lines):
        at = y + high / 2 + (place - (len(lines) - 1) / 2) * _LINE
        yield Label(x=x + wide / 2, y=at, text=text, size=12, anchor="middle", on=one.kind)
