"""A picture as plain data: rectangles, labels and lines, in pixels from the top left corner.

`to_svg` and `to_figure` draw the same Scene. `fill`, `stroke` and `colour` name a kind of the palette ("forward") or a
role that follows the theme: "surface", "panel", "rule", "ink", "muted".
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from helpers.draw.palette import PAINTS, TEXTURES, kind_word, look

ROLES = ("surface", "panel", "rule", "ink", "muted")
ANCHORS = ("start", "middle", "end")
WIDTH = 800  # pixels: in a narrow window a Scene is shown as it is
SHOWN = 1.25  # times its pixels is a Scene shown where a notebook's column has room: 1000, and the smallest word 12
SMALLEST = 12 / SHOWN  # pixels of a letter; what does not fit at that size is left to the tooltip


def _known(what: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        raise ValueError(f"{what} is {given!r}, but it must be one of {', '.join(filter(None, known))}")


COLOURS = dict.fromkeys((*PAINTS, *ROLES))  # a dict keeps the order for the sentence and finds a name at once
_COLOURS_OR_NONE, _PAINTS_OR_NONE, _TEXTURES_OR_NONE = (
    {"": None, **dict.fromkeys(k)} for k in (COLOURS, PAINTS, TEXTURES)
)


@dataclass(frozen=True, kw_only=True)
class Rect:
    """A rectangle. fill: kind or role, "" for none. stroke: role or kind, "" for none. tooltip: shown on hover.

    pick: what a click or Enter on it chooses, where a widget listens (widgets/picks.py); "" for nothing.
    """

    x: float
    y: float
    width: float
    height: float
    fill: str = ""
    stroke: str = ""
    stroke_width: float = 1.0
    texture: str = ""
    tooltip: str = ""
    radius: float = 0.0
    opacity: float = 1.0
    pick: str = ""
    is_picked: bool = False

    def __post_init__(self) -> None:
        _known("the fill of a Rect", self.fill, _COLOURS_OR_NONE)
        _known("the stroke of a Rect", self.stroke, _COLOURS_OR_NONE)
        _known("the texture of a Rect", self.texture, _TEXTURES_OR_NONE)
        if not (self.width >= 0 and self.height >= 0):
            raise ValueError(f"a Rect is {self.width!r} x {self.height!r} pixels; both must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class Label:
    """A line of text; y is its middle. on: the kind on whose fill it stands, which then sets its colour."""

    x: float
    y: float
    text: str
    size: float = 12.0
    anchor: str = "start"
    colour: str = "ink"
    on: str = ""
    bold: bool = False

    def __post_init__(self) -> None:
        _known("the anchor of a Label", self.anchor, ANCHORS)
        _known("the colour of a Label", self.colour, ("ink", "muted"))
        _known("`on` of a Label", self.on, _PAINTS_OR_NONE)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """left, top, right, bottom in pixels, from the estimated width."""
        width = text_width(self.text, self.size, self.bold)
        left = self.x - width * ANCHORS.index(self.anchor) / 2
        return left, self.y - self.size / 2, left + width, self.y + self.size / 2


@dataclass(frozen=True, kw_only=True)
class Line:
    """A straight line, with an arrow head at its end if wanted."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str = "rule"
    width: float = 1.0
    dashed: bool = False
    arrow: bool = False
    tooltip: str = ""

    def __post_init__(self) -> None:
        _known("the colour of a Line", self.colour, COLOURS)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """title: one line. summary: what the picture shows, for those who cannot see it. Sizes in pixels."""

    width: float
    height: float
    title: str
    summary: str
    items: tuple[Rect | Label | Line, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", tuple(self.items))
        if not (self.width > 0 and self.height > 0):
            raise ValueError(f"a Scene is {self.width!r} x {self.height!r} pixels; both must be above 0")

    def labels(self) -> tuple[Label, ...]:
        """The labels, in drawing order."""
        return tuple(item for item in self.items if isinstance(item, Label))


WIDE = "\u2e80"  # the first of the letters that are as wide as they are high, as Chinese ones are
_EMS = dict.fromkeys("iljI.,:;|!'()[] -", 0.4) | dict.fromkeys("+=<>~×→", 0.84) | dict.fromkeys("mwMW@%", 0.98)


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Pixels that the text takes at most in the fonts we use, estimated by classes of letters."""
    ems = sum(_EMS.get(letter, 0.64 if letter < WIDE else 1.0) for letter in text)
    return ems * size * (1.1 if bold else 1.0)


def heading(title: str, entries: list[tuple[str, dict]], width: float) -> tuple[list[Rect | Label], float]:
    """The title and, at the right end, a swatch and a word for each entry: (word, look of its Rect).

    The legend goes below the title where both do not fit beside each other. Also returns the y at which they end.
    """
    needed = sum(text_width(word, 11) + 32 for word, _ in entries)
    beside = 14 + text_width(title, 14, bold=True) + needed < width
    items: list[Rect | Label] = [Label(x=14, y=20, text=title, size=14, bold=True)]
    right, y = (width - 20, 20.0) if beside else (needed, 42.0)
    for word, swatch in reversed(entries):
        left = right - text_width(word, 11)
        items.append(Label(x=left, y=y, text=word, size=11, colour="muted"))
        items.append(Rect(x=left - 18, y=y - 5, width=13, height=10, radius=2, **swatch))
        right = left - 32
    return items, y + 16


def kinds_legend(kinds: list[str]) -> list[tuple[str, dict]]:
    """The entries of `heading` for kinds of the palette."""
    return [(kind_word(kind), look(kind)) for kind in kinds]
