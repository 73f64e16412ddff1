"""Draws a Scene as PNG bytes (`to_png`), for saved notebooks.

matplotlib draws the shapes and Pillow the letters. matplotlib lays out and paints every letter anew, which took two
thirds of the time of a picture of 130 words, while a widget's first display waits for its PNG; Pillow writes the
letters in a tenth of that. Both libraries are imported when the first picture is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.draw.palette import GREY, LIGHT, MUTED_OPACITY, PAINTS, PANEL_OPACITY, RULE_OPACITY, blend
from helpers.draw.scene import WIDE, Label, Line, Rect, Scene
from helpers.draw.svg import arrow_head, is_thin, outline
from helpers.learner.words import language

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

DPI = 72  # With 72 dots per inch, one pixel of the Scene is one point of the figure.
# matplotlib's hatch for each texture of the palette, and the opacity of its strokes.
_HATCHES = {"stripes": "////", "lines": "---", "dots": "...", "hatch": "\\\\\\\\"}
_HATCH_OPACITY = {"stripes": 0.32, "lines": 0.45, "dots": 0.6, "hatch": 0.9}
_PNG_LETTERS = 0.93  # the font DejaVu is wider than a browser's letters, so its size is reduced
_PILLOW_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}  # left, middle or right end of the base line
_BASE_LINE = 0.35  # of the font size: how far the base line lies below the middle, as in the SVG
_CHINESE_FONTS = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei")
_CHINESE_FONTS += ("Microsoft YaHei", "PingFang SC", "Hiragino Sans GB", "SimHei", "Droid Sans Fallback")
# PNG pixels per pixel of the Scene. A page shows a Scene 1.25 times its size, so these are 1.2 per pixel there. More
# would make some chapters larger than the 520 kB that a notebook may have.
_SCALE = 1.5
_COLOURS = 64  # of a PNG, at most
_NEAR = 8  # of 255: colours that differ by no more than this in any channel are one for Pillow


# -- shapes ----------------------------------------------------------------------------------------------------------
def _figure(shapes: Scene) -> Figure:
    """A Scene without labels as a matplotlib Figure whose axes count pixels from the top left corner, as in the SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(shapes.width / DPI, shapes.height / DPI), dpi=DPI, facecolor=LIGHT.surface)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, shapes.width)
    axes.set_ylim(shapes.height, 0)
    axes.axis("off")
    numbered = enumerate(shapes.items)  # the number says what lies above what, matplotlib's zorder
    for is_plain, run in groupby(numbered, lambda pair: _is_plain(pair[1])):
        if is_plain:
            _add_plain_rects(axes, list(run))
        else:
            for order, item in run:
                (_add_rect if isinstance(item, Rect) else _add_line)(axes, item, order)
    return figure


def _colour(name: str) -> str:
    """The colour of a kind, or of a role: "surface", "panel", "rule", "ink", "muted"."""
    if name in PAINTS:
        return PAINTS[name].fill
    mixed = {"panel": PANEL_OPACITY, "rule": RULE_OPACITY}
    if name in mixed:
        return blend(GREY, LIGHT.surface, mixed[name])
    return {"surface": LIGHT.surface, "ink": LIGHT.ink, "muted": blend(LIGHT.ink, LIGHT.surface, MUTED_OPACITY)}[name]


def _is_plain(item: Rect | Line) -> bool:
    """Whether the item is a filled rectangle and nothing else.

    A picture of 20,000 spans has thousands of them, which take seconds when added one by one.
    """
    if not isinstance(item, Rect) or not item.fill or item.texture or item.stroke:
        return False
    is_round = item.radius and min(item.width, item.height) > 2 * item.radius
    # `outline` is the colour that a pale fill needs around it, or ""; in a thin rectangle it replaces the fill.
    has_outline = outline(item) and not is_thin(item)
    return not is_round and not has_outline


def _add_plain_rects(axes: Axes, run: list[tuple[int, Rect]]) -> None:
    """Adds rectangles that follow each other in the drawing order as one collection."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba

    items = [item for _, item in run]
    colours = [to_rgba(outline(item) or _colour(item.fill), item.opacity) for item in items]
    corners = [_corners(item) for item in items]
    axes.add_artist(PolyCollection(corners, facecolors=colours, linewidths=0, zorder=run[0][0]))


def _corners(item: Rect) -> list[tuple[float, float]]:
    """The four corners of a rectangle."""
    left, top, right, bottom = item.x, item.y, item.x + item.width, item.y + item.height
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _shape(item: Rect, **style: object):
    """A rectangle of matplotlib, with round corners where they fit."""
    from matplotlib.patches import FancyBboxPatch, Rectangle

    if not item.radius or min(item.width, item.height) <= 2 * item.radius:
        return Rectangle((item.x, item.y), item.width, item.height, **style)
    box_style = f"round,pad=0,rounding_size={item.radius}"
    return FancyBboxPatch((item.x, item.y), item.width, item.height, boxstyle=box_style, **style)


def _add_rect(axes: Axes, item: Rect, order: int) -> None:
    """Fill, texture and outline are three shapes; their fractions of `order` keep them in this order."""
    edge = outline(item)  # the colour that a pale fill needs around it, or ""
    if item.fill:
        fill = edge if edge and is_thin(item) else _colour(item.fill)
        axes.add_artist(_shape(item, facecolor=fill, linewidth=0, alpha=item.opacity, zorder=order))
    if item.texture:
        over = PAINTS[item.fill].overlay if item.fill in PAINTS else GREY
        under = _colour(item.fill) if item.fill else LIGHT.surface
        ink = blend(over, under, _HATCH_OPACITY[item.texture])
        style = {"fill": False, "edgecolor": ink, "hatch": _HATCHES[item.texture], "linewidth": 0}
        axes.add_artist(_shape(item, **style, zorder=order + 0.1))
    if item.stroke:
        style = {"fill": False, "edgecolor": _colour(item.stroke), "linewidth": item.stroke_width}
        axes.add_artist(_shape(item, **style, zorder=order + 0.2))
    elif edge and not is_thin(item):
        inner = replace(item, x=item.x + 0.5, y=item.y + 0.5, width=item.width - 1, height=item.height - 1)
        axes.add_artist(_shape(inner, fill=False, edgecolor=edge, linewidth=1.0, zorder=order + 0.2))


def _add_line(axes: Axes, item: Line, order: int) -> None:
    """Add a line to the axes, with its arrow head if it has one."""
    colour = _colour(item.colour)
    style = (0, (4, 3)) if item.dashed else "solid"
    xs, ys = (item.x1, item.x2), (item.y1, item.y2)
    axes.plot(xs, ys, color=colour, linewidth=item.width, linestyle=style, zorder=order, solid_capstyle="butt")
    if item.arrow:
        axes.fill(*zip(*arrow_head(item), strict=True), color=colour, linewidth=0, zorder=order)


# -- PNG -------------------------------------------------------------------------------------------------------------
def to_png(scene: Scene, *, scale: float = _SCALE, colours: int = _COLOURS) -> bytes:
    """The Scene as PNG bytes, with `scale` PNG pixels per pixel of the Scene and at most `colours` colours.

    Few colours keep saved notebooks small. Labels are written last, so nothing covers them. The pixels come straight
    from matplotlib's buffer, since a PNG in between, or tighter compression, would take as long as the drawing itself.
    """
    labels = [item for item in scene.items if isinstance(item, Label)]
    shapes = tuple(item for item in scene.items if not isinstance(item, Label))
    image, file = _painted(replace(scene, items=shapes), scale), io.BytesIO()
    _write_labels(image, labels, scale)
    _with_few_colours(image, shapes, colours).save(file, "PNG", compress_level=6)
    return file.getvalue()


def _with_few_colours(image: Image, shapes: Iterable, colours: int) -> Image:
    """The image with at most `colours` colours, among which the background and the kinds drawn stay exact.

    A plain reduction would mix rare colours, such as an orange into grey.
    """
    from PIL.Image import Dither, new

    fills = {PAINTS[shape.fill].fill for shape in shapes if isinstance(shape, Rect) and shape.fill in PAINTS}
    exact = [tuple(bytes.fromhex(colour[1:])) for colour in sorted({LIGHT.surface, *fills})]
    channels = image.quantize(colours - len(exact), dither=Dither.NONE).getpalette()
    reduced = zip(*[iter(channels)] * 3, strict=True)  # one iterator three times: red, green and blue of each colour
    others = [colour for colour in reduced if not any(_is_near(colour, kind) for kind in exact)]
    palette = new("P", (1, 1))
    palette.putpalette([channel for colour in [*exact, *others] for channel in colour])
    return image.quantize(palette=palette, dither=Dither.NONE)


def _is_near(colour: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether Pillow, which looks for a colour only roughly, could take the one for the other."""
    return max(abs(a - b) for a, b in zip(colour, other, strict=True)) <= _NEAR


def _painted(shapes: Scene, scale: float) -> Image:
    """A Scene without labels as an image of Pillow, painted by matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure = _figure(shapes)
    figure.set_dpi(DPI * scale)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")


def _write_labels(image: Image, labels: Iterable[Label], scale: float) -> None:
    """Write the labels onto the image."""
    from PIL.ImageDraw import Draw

    draw = Draw(image)
    for label in labels:
        position = label.x * scale, (label.y + _BASE_LINE * label.size) * scale
        is_wide = any(letter >= WIDE for letter in label.text)
        font = _font(max(1, round(label.size * _PNG_LETTERS * scale)), label.bold, is_wide)
        colour = (
            PAINTS[label.on].text if label.on else _colour(label.colour)
        )  # ink, or what is legible on the fill below
        draw.text(position, label.text, fill=colour, font=font, anchor=_PILLOW_ANCHORS[label.anchor])


@cache
def _font(size: int, bold: bool, is_wide: bool) -> FreeTypeFont:
    """A font of `size` pixels; `is_wide` asks for one with Chinese letters, where this machine has such a font."""
    from matplotlib import get_data_path
    from PIL.ImageFont import Layout, truetype

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = (is_wide and chinese_font()) or Path(get_data_path(), "fonts", "ttf", name)
    return truetype(path, size, layout_engine=Layout.BASIC)


@cache
def chinese_font() -> str | None:
    """The file of a font with Chinese letters, or None where this machine has none."""
    from matplotlib.font_manager import fontManager

    files = {font.name: font.fname for font in fontManager.ttflist}
    return next((files[name] for name in _CHINESE_FONTS if name in files), None)


def png_language() -> str | None:
    """The language in which to draw a PNG: None for the chosen one, "en" where this machine has no font for it."""
    return None if language() == "en" or chinese_font() else "en"
