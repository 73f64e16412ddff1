"""Provides Scene, a picture as plain data: rectangles, labels and lines, in pixels from the top left corner.

Every function of `helpers.draw` whose name ends in `_scene` returns a Scene; `svg.to_svg` draws it for a live view and
`png.to_png` for a saved notebook. `fill`, `stroke` and `colour` name a kind of the palette ("forward") or a role whose
colour follows the theme: "surface", "panel", "rule", "ink", "muted". The functions below the classes make items that
many scenes need, such as a heading, a dot or a box with a text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from helpers.draw.palette import PAINTS, TEXTURES, kind_style, kind_word

ROLES = ("surface", "panel", "rule", "ink", "muted")
ANCHORS = ("start", "middle", "end")
WIDTH = 800  # pixels of most Scenes: a narrow window shows such a Scene unscaled
SHOWN = 1.25  # A notebook's column shows a Scene this many times its own size: 1000 pixels wide, smallest letters 12.
SMALLEST = 12 / SHOWN  # pixels of the smallest letters; a text that does not fit at that size is left to the tooltip
MARGIN = 14.0  # pixels from the left edge to the title and to the names of rows
TITLE_Y = 20.0  # pixels from the top edge to the middle of the title
_STACK_GAP = 22.0  # pixels between two pictures of `stacked_scene`


def _check_name(what: str, given: str, known: Collection[str]) -> None:
    """Raises ValueError for a name that is not known; "" among the known ones means none."""
    if given not in known:
        raise ValueError(f"{what} is {given!r}, but it must be one of {', '.join(filter(None, known))}")


# Dicts without values: they find a name at once, and keep the order in which the error message lists the names.
COLOURS = dict.fromkeys((*PAINTS, *ROLES))
_COLOURS_OR_NONE = {"": None, **COLOURS}
_PAINTS_OR_NONE = {"": None, **dict.fromkeys(PAINTS)}
_TEXTURES_OR_NONE = {"": None, **dict.fromkeys(TEXTURES)}


@dataclass(frozen=True, kw_only=True)
class Rect:
    """A rectangle. `fill` and `stroke` name a kind or a role, or are "" for none; `tooltip` is shown on hover.

    `pick` is what a click or the Enter key on the rectangle chooses, where an explorer listens (Picks in
    widgets/controls.py); with "" the rectangle cannot be clicked.
    """

    x: float  # of the top left corner, in pixels like all sizes
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
    is_picked: bool = False  # whether it is the one that is chosen at the moment

    def __post_init__(self) -> None:
        _check_name("the fill of a Rect", self.fill, _COLOURS_OR_NONE)
        _check_name("the stroke of a Rect", self.stroke, _COLOURS_OR_NONE)
        _check_name("the texture of a Rect", self.texture, _TEXTURES_OR_NONE)
        if not (self.width >= 0 and self.height >= 0):
            raise ValueError(f"a Rect is {self.width!r} x {self.height!r} pixels; both must be 0 or more")


@dataclass(frozen=True, kw_only=True)
class Label:
    """A line of text whose vertical middle is at `y`.

    `on` is the kind on whose fill the text stands, or ""; the text then has the colour that is legible on that fill.
    """

    x: float
    y: float
    text: str
    size: float = 12.0
    anchor: str = "start"
    colour: str = "ink"
    on: str = ""
    bold: bool = False

    def __post_init__(self) -> None:
        _check_name("the anchor of a Label", self.anchor, ANCHORS)
        _check_name("the colour of a Label", self.colour, ("ink", "muted"))
        _check_name("`on` of a Label", self.on, _PAINTS_OR_NONE)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A straight line from (x1, y1) to (x2, y2), with an arrow head at its end if `arrow` is set."""

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
        _check_name("the colour of a Line", self.colour, COLOURS)


SceneItem = Rect | Label | Line
Legend = Sequence[tuple[str, dict]]  # (word, fields of the Rect that is its swatch) of each entry


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A picture: its size in pixels, a title of one line, and its items in the order in which they are drawn.

    `summary` says in sentences what the picture shows, for readers who cannot see it.
    """

    height: float
    title: str
    summary: str
    width: float = WIDTH
    items: tuple[SceneItem, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", tuple(self.items))  # the class is frozen, so plain assignment is refused
        if not (self.width > 0 and self.height > 0):
            raise ValueError(f"a Scene is {self.width!r} x {self.height!r} pixels; both must be above 0")

    def labels(self) -> tuple[Label, ...]:
        """The labels, in drawing order."""
        return tuple(item for item in self.items if isinstance(item, Label))


WIDE = "\u2e80"  # From this letter on, letters are as wide as they are high; Chinese letters are among them.
# Widths of letters in parts of the font size, where they differ from the usual 0.64.
_LETTER_WIDTHS = (
    dict.fromkeys("iljI.,:;|!'()[] -", 0.4) | dict.fromkeys("+=<>~×→", 0.84) | dict.fromkeys("mwMW@%", 0.98)
)


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Pixels that the text takes at most in the fonts we use, estimated by classes of letters."""
    in_font_sizes = sum(_LETTER_WIDTHS.get(letter, 0.64 if letter < WIDE else 1.0) for letter in text)
    return in_font_sizes * size * (1.1 if bold else 1.0)


def title_label(title: str) -> Label:
    """The title of a Scene that has no legend beside it; `heading` makes both."""
    return Label(x=MARGIN, y=TITLE_Y, text=title, size=14, bold=True)


def dot(x: float, y: float, diameter: float, **style: object) -> Rect:
    """A circle around (x, y).

    Its corner radius is a little less than half the diameter, because `to_png` draws plain corners from half on.
    """
    left, top = x - diameter / 2, y - diameter / 2
    return Rect(x=left, y=top, width=diameter, height=diameter, radius=diameter / 2 - 0.1, **style)


def centred_label(x: float, y: float, text: str, size: float = 12.0, **style: object) -> Label:
    """A text whose middle is at (x, y)."""
    return Label(x=x, y=y, text=text, size=size, anchor="middle", **style)


def labelled_box(
    x: float, y: float, width: float, height: float, text: str, size: float = 12.0, bold: bool = False, **style: object
) -> Iterator[Rect | Label]:
    """A box with the text, if any, in its middle, legible on the fill; `style` are further fields of the Rect."""
    yield Rect(x=x, y=y, width=width, height=height, **style)
    fill = style.get("fill", "")
    if text:
        on = fill if fill in PAINTS else ""
        yield centred_label(x + width / 2, y + height / 2, text, size, on=on, bold=bold)


def shortened(text: str, available: float, size: float) -> str:
    """The text, or as much of its beginning as fits into `available` pixels, with "…" behind it."""
    if text_width(text, size) <= available:
        return text
    end = next(end for end in range(len(text), 0, -1) if text_width(text[:end] + "…", size) <= available)
    return text[:end].rstrip() + "…"


def polyline(points: Iterable[tuple[float, float]], **style: object) -> Iterator[Line]:
    """Lines that connect the points, given in pixels, in their order; `style` are fields of each Line."""
    for (x1, y1), (x2, y2) in pairwise(points):
        yield Line(x1=x1, y1=y1, x2=x2, y2=y2, **style)


def heading(title: str, entries: Legend, width: float = WIDTH) -> tuple[list[SceneItem], float]:
    """The title and a legend at the right end, and the y at which both end.

    The legend goes below the title where the two do not fit beside each other.
    """
    needed = sum(text_width(word, 11) + 32 for word, _ in entries)  # 32: the swatch and the spaces around it
    fits = MARGIN + text_width(title, 14, bold=True) + needed < width
    items: list[SceneItem] = [title_label(title)]
    right, y = (width - 20, TITLE_Y) if fits else (needed, TITLE_Y + 22)
    for word, swatch in reversed(entries):
        left = right - text_width(word, 11)
        items.append(Label(x=left, y=y, text=word, size=11, colour="muted"))
        items.append(Rect(x=left - 18, y=y - 5, width=13, height=10, radius=2, **swatch))
        right = left - 32
    return items, y + 16


def kinds_legend(kinds: list[str]) -> list[tuple[str, dict]]:
    """The entries of `heading` for kinds of the palette."""
    return [(kind_word(kind), kind_style(kind)) for kind in kinds]


def stacked_scene(*scenes: Scene, title: str) -> Scene:
    """One Scene that shows all given ones, one below the other, each under its own title.

    A saved notebook keeps a single picture per result, so several pictures have to be one. `title` is what a reader is
    told who cannot see the picture. Raises ValueError without a scene.
    """
    if not scenes:
        raise ValueError("stacked_scene got no scene: give at least one")
    items, top = [], 0.0
    for scene in scenes:
        items += [_moved_down(item, top) for item in scene.items]
        top += scene.height + _STACK_GAP
    summary = " ".join(f"{scene.title}: {scene.summary}" for scene in scenes)
    width = max(scene.width for scene in scenes)
    return Scene(width=width, height=top - _STACK_GAP, title=title, summary=summary, items=items)


def _moved_down(item: SceneItem, pixels: float) -> SceneItem:
    """A copy of the item, so many pixels lower."""
    if isinstance(item, Line):
        return replace(item, y1=item.y1 + pixels, y2=item.y2 + pixels)
    return replace(item, y=item.y + pixels)
