"""A Scene as a matplotlib figure, and from that as PNG. matplotlib is imported when the first figure is made."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from helpers.draw.palette import GREY, LIGHT, MUTED_OPACITY, PAINTS, PANEL_OPACITY, RULE_OPACITY, Theme, blend
from helpers.draw.scene import Label, Line, Rect, Scene
from helpers.draw.svg import arrow_head

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 72  # one pixel of the Scene is one point of the figure
_HATCHES = {"stripes": "////", "lines": "---", "dots": "...", "hatch": "\\\\\\\\"}
_HATCH_OPACITY = {"stripes": 0.32, "lines": 0.45, "dots": 0.6, "hatch": 0.55}


def to_figure(scene: Scene, theme: Theme = LIGHT) -> Figure:
    """The Scene as a Figure whose axes count pixels from the top left corner, as in the SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(scene.width / _DPI, scene.height / _DPI), dpi=_DPI, facecolor=theme.surface)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    axes.axis("off")
    for order, item in enumerate(scene.items):
        _add(axes, item, theme, order)
    return figure


def to_png(scene: Scene, *, scale: float = 1.5, theme: Theme = LIGHT) -> bytes:
    """PNG bytes, `scale` times the Scene's pixels, with at most 64 colours to keep saved notebooks small."""
    from PIL import Image

    whole, small = io.BytesIO(), io.BytesIO()
    to_figure(scene, theme).savefig(whole, format="png", dpi=_DPI * scale, facecolor=theme.surface)
    Image.open(whole).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def _colour(name: str, theme: Theme) -> str:
    if name in PAINTS:
        return PAINTS[name].fill
    mixed = {"panel": PANEL_OPACITY, "rule": RULE_OPACITY}
    if name in mixed:
        return blend(GREY, theme.surface, mixed[name])
    return {"surface": theme.surface, "ink": theme.ink, "muted": blend(theme.ink, theme.surface, MUTED_OPACITY)}[name]


def _add(axes: Axes, item: Rect | Label | Line, theme: Theme, order: int) -> None:
    add = _add_rect if isinstance(item, Rect) else _add_label if isinstance(item, Label) else _add_line
    add(axes, item, theme, order)


def _shape(item: Rect, **look: object):
    from matplotlib.patches import FancyBboxPatch, Rectangle

    if not item.radius or min(item.width, item.height) <= 2 * item.radius:
        return Rectangle((item.x, item.y), item.width, item.height, **look)
    style = f"round,pad=0,rounding_size={item.radius}"
    return FancyBboxPatch((item.x, item.y), item.width, item.height, boxstyle=style, **look)


def _add_rect(axes: Axes, item: Rect, theme: Theme, order: int) -> None:
    if item.fill:
        fill = _colour(item.fill, theme)
        axes.add_patch(_shape(item, facecolor=fill, linewidth=0, alpha=item.opacity, zorder=order))
    if item.texture:
        over = PAINTS[item.fill].overlay if item.fill in PAINTS else GREY
        under = _colour(item.fill, theme) if item.fill else theme.surface
        ink = blend(over, under, _HATCH_OPACITY[item.texture])
        look = {"fill": False, "edgecolor": ink, "hatch": _HATCHES[item.texture], "linewidth": 0}
        axes.add_patch(_shape(item, **look, zorder=order + 0.1))
    if item.stroke:
        look = {"fill": False, "edgecolor": _colour(item.stroke, theme), "linewidth": item.stroke_width}
        axes.add_patch(_shape(item, **look, zorder=order + 0.2))


def _add_label(axes: Axes, item: Label, theme: Theme, order: int) -> None:
    align = {"start": "left", "middle": "center", "end": "right"}[item.anchor]
    colour = PAINTS[item.on].text if item.on else _colour(item.colour, theme)
    look = {"fontsize": item.size * 0.93, "color": colour, "fontweight": "bold" if item.bold else "normal"}
    text = item.text.replace("$", r"\$")
    axes.text(item.x, item.y, text, ha=align, va="center_baseline", zorder=order, **look)


def _add_line(axes: Axes, item: Line, theme: Theme, order: int) -> None:
    colour = _colour(item.colour, theme)
    style = (0, (4, 3)) if item.dashed else "solid"
    xs, ys = (item.x1, item.x2), (item.y1, item.y2)
    axes.plot(xs, ys, color=colour, linewidth=item.width, linestyle=style, zorder=order, solid_capstyle="butt")
    if item.arrow:
        axes.fill(*zip(*arrow_head(item), strict=True), color=colour, linewidth=0, zorder=order)
