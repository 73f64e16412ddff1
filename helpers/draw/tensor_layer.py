"""One layer of tensor parallelism as Megatron draws it: f and g around each part, forward above and backward below."""

from __future__ import annotations

from collections.abc import Iterator

from helpers.draw.palette import PAINTS, kind_word
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend
from helpers.learner.words import book

_ROW = (("f", 0.5), ("attention", 1.5), ("g", 0.5), ("f", 0.5), ("MLP", 1.5), ("g", 0.5))
_LEFT, _RIGHT, _HIGH, _APART, _GAP = 100.0, 30.0, 34.0, 58.0, 0.35


def tensor_layer_scene(*, title: str, width: float = WIDTH) -> Scene:
    """Two rows of f, attention, g, f, MLP, g; what sends is orange, and an f or g that does nothing is empty."""
    head, top = heading(title, kinds_legend(["forward", "backward", "communication"]), width)
    items = [*head, *_row("forward", top + 18, width), *_row("backward", top + 18 + _APART, width)]
    summary = book("pictures")("layer")
    return Scene(width=width, height=top + 18 + 2 * _APART, title=title, summary=summary, items=tuple(items))


def _row(kind: str, y: float, width: float) -> Iterator[Rect | Label | Line]:
    """Boxes from left to right, and arrows between them: to the right in forward, to the left in backward."""
    scale = (width - _LEFT - _RIGHT) / (sum(size for _, size in _ROW) + _GAP * (len(_ROW) - 1))
    sends, middle, x = "g" if kind == "forward" else "f", y + _HIGH / 2, _LEFT
    yield Label(x=14, y=middle, text=kind_word(kind), size=13)
    for place, (name, size) in enumerate(_ROW):
        if place:
            ends = (x - 0.32 * scale, x - 0.03 * scale)
            x1, x2 = ends if kind == "forward" else ends[::-1]
            yield Line(x1=x1, y1=middle, x2=x2, y2=middle, colour="ink", width=1.5, arrow=True)
        on = "communication" if name == sends else kind if size > 1 else ""
        look = {"fill": on, "texture": PAINTS[on].texture} if on else {"stroke": "muted"}
        yield Rect(x=x, y=y, width=size * scale, height=_HIGH, radius=4, **look)
        centre = x + size * scale / 2
        yield Label(x=centre, y=middle, text=name, size=14, anchor="middle", bold=True, on=on)
        if on == "communication":
            yield Label(x=centre, y=y + _HIGH + 9, text="all-reduce", size=11, anchor="middle")
        x += (size + _GAP) * scale
