"""One layer of tensor parallelism as Megatron draws it: f and g around each part, forward above and backward below."""

from __future__ import annotations

from collections.abc import Iterator

from helpers.draw.palette import PAINTS
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend
from helpers.words import book

say = book("pictures")
_ROW = (("f", 0.5), ("attention", 1.5), ("g", 0.5), ("f", 0.5), ("mlp", 1.5), ("g", 0.5))
_LEFT, _RIGHT, _HIGH, _APART = 100.0, 30.0, 34.0, 58.0


def tensor_layer_scene(*, title: str, width: float = WIDTH) -> Scene:
    """Two rows of f, attention, g, f, MLP, g; what sends in a row is orange and says so."""
    head, top = heading(title, kinds_legend(["forward", "backward", "communication"]), width)
    rows = [_row(kind, top + 18 + number * _APART, width) for number, kind in enumerate(("forward", "backward"))]
    items = (*head, *(item for row in rows for item in row))
    return Scene(width=width, height=top + 18 + 2 * _APART, title=title, summary=say("layer.summary"), items=items)


def _row(kind: str, y: float, width: float) -> Iterator[Rect | Label | Line]:
    """Boxes from left to right, and arrows between them: to the right in forward, to the left in backward."""
    scale = (width - _LEFT - _RIGHT) / (sum(size for _, size in _ROW) + 0.35 * (len(_ROW) - 1))
    sends, middle, x = ("g" if kind == "forward" else "f"), y + _HIGH / 2, _LEFT
    yield Label(x=14, y=middle, text=say(f"layer.{kind}"), size=13)
    for place, (name, size) in enumerate(_ROW):
        if place:
            ends = (x - 0.32 * scale, x - 0.03 * scale)
            x1, x2 = ends if kind == "forward" else ends[::-1]
            yield Line(x1=x1, y1=middle, x2=x2, y2=middle, colour="ink", width=1.5, arrow=True)
        yield from _box(name, "communication" if name == sends else kind, (x, y, size * scale))
        x += (size + 0.35) * scale


def _box(name: str, kind: str, place: tuple[float, float, float]) -> Iterator[Rect | Label]:
    """An operator that sends nothing is empty: it is the identity."""
    x, y, wide = place
    look = {"stroke": "muted"} if name in "fg" and kind != "communication" else {"fill": kind}
    texture = PAINTS[kind].texture if "fill" in look else ""
    yield Rect(x=x, y=y, width=wide, height=_HIGH, radius=4, texture=texture, **look)
    word = name if name in "fg" else say(f"layer.{name}")
    yield Label(
        x=x + wide / 2, y=y + _HIGH / 2, text=word, size=14, anchor="middle", bold=True, on=look.get("fill", "")
    )
    if kind == "communication":
        yield Label(x=x + wide / 2, y=y + _HIGH + 9, text="all-reduce", size=11, anchor="middle")
