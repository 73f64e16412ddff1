"""A Scene as PNG, for saved notebooks: shapes by matplotlib, letters by Pillow.

A widget's first display waits for its PNG. matplotlib lays out and paints each letter anew: of a picture of 130 words
that was two thirds of the time, and Pillow writes them in a tenth of that.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.draw.figure import DPI, label_colour, to_figure
from helpers.draw.palette import LIGHT, PAINTS, Theme
from helpers.draw.scene import WIDE, Label, Rect, Scene
from helpers.learner.words import language

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}  # Pillow's names: left, middle or right end of the base line
_BASE_LINE = 0.35  # of the size, below the middle, as in the SVG
_CHINESE = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei")
_CHINESE += ("Microsoft YaHei", "PingFang SC", "Hiragino Sans GB", "SimHei", "Droid Sans Fallback")
_SCALE = 1.5  # with SHOWN 1.2 pixels a pixel; more would take chapter 01 above the 500 kB of a notebook
_COLOURS = 64
_WIDTH = 0.93  # DejaVu, which matplotlib brings, is wider than a browser's letters


def to_png(scene: Scene, *, scale: float = _SCALE, theme: Theme = LIGHT, colours: int = _COLOURS) -> bytes:
    """PNG bytes, `scale` times the Scene's pixels, with at most so many colours to keep saved notebooks small.

    Labels are written last, so nothing covers them. Straight from matplotlib's buffer: a PNG in between, or one packed
    as tightly as can be, takes as long as drawing does.
    """
    labels = [item for item in scene.items if isinstance(item, Label)]
    shapes = tuple(item for item in scene.items if not isinstance(item, Label))
    whole, small = _painted(replace(scene, items=shapes), scale, theme), io.BytesIO()
    _write(whole, labels, scale, theme)
    _with_few_colours(whole, shapes, theme, colours).save(small, "PNG", compress_level=6)
    return small.getvalue()


def _with_few_colours(whole: Image, shapes: Iterable, theme: Theme, colours: int) -> Image:
    """The ground and the kinds drawn keep their colours: a cut alone mixes rare ones, an orange into grey."""
    from PIL.Image import Dither, new

    fills = {PAINTS[one.fill].fill for one in shapes if isinstance(one, Rect) and one.fill in PAINTS}
    kept = [tuple(bytes.fromhex(colour[1:])) for colour in sorted({theme.surface, *fills})]
    cut = whole.quantize(colours - len(kept), dither=Dither.NONE).getpalette()
    others = [one for one in zip(*[iter(cut)] * 3, strict=True) if not any(_is_near(one, own) for own in kept)]
    palette = new("P", (1, 1))
    palette.putpalette([channel for colour in [*kept, *others] for channel in colour])
    return whole.quantize(palette=palette, dither=Dither.NONE)


def _is_near(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Pillow, which looks for a colour roughly, would take the one for the other."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) <= 8


def _painted(scene: Scene, scale: float, theme: Theme) -> Image:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure = to_figure(scene, theme)
    figure.set_dpi(DPI * scale)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")


def _write(image: Image, labels: Iterable[Label], scale: float, theme: Theme) -> None:
    from PIL.ImageDraw import Draw

    draw = Draw(image)
    for label in labels:
        place = label.x * scale, (label.y + _BASE_LINE * label.size) * scale
        font = _font(max(1, round(label.size * _WIDTH * scale)), label.bold, any(one >= WIDE for one in label.text))
        draw.text(place, label.text, fill=label_colour(label, theme), font=font, anchor=_ANCHORS[label.anchor])


@cache
def _font(size: int, bold: bool, wide: bool) -> FreeTypeFont:
    """size: pixels of an em. wide: for Chinese, where this machine has a font for it."""
    from matplotlib import get_data_path
    from PIL.ImageFont import Layout, truetype

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = (wide and chinese_font()) or Path(get_data_path(), "fonts", "ttf", name)
    return truetype(path, size, layout_engine=Layout.BASIC)


@cache
def chinese_font() -> str | None:
    """The file of a font with Chinese letters, None where this machine has none."""
    from matplotlib.font_manager import fontManager

    found = {one.name: one.fname for one in fontManager.ttflist}
    return next((found[name] for name in _CHINESE if name in found), None)


def png_language() -> str | None:
    """The language of a PNG where it cannot be the one that was chosen: English needs no font of the machine's own."""
    return None if language() == "en" or chinese_font() else "en"
