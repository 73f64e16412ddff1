"""A Scene as a matplotlib figure. matplotlib is imported when the first figure is made."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from helpers.draw.palette import GREY, LIGHT, MUTED_OPACITY, PAINTS, PANEL_OPACITY, RULE_OPACITY, Theme, blend
from helpers.draw.scene import Label, Line, Rect, Scene
from helpers.draw.svg import arrow_head, is_thin, outline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 72  # one pixel of the Scene is one point of the figure
_HATCHES = {"stripes": "////", "lines": "---", "dots": "...", "hatch": "\\\\\\\\"}
_HATCH_OPACITY = {"stripes": 0.32, "lines": 0.45, "dots": 0.6, "hatch": 0.9}


def to_figure(scene: Scene, theme: Theme = LIGHT) -> Figure:
    """The Scene as a Figure whose axes count pixels from the top left corner, as in the SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(scene.width / DPI, scene.height / DPI), dpi=DPI, facecolor=theme.surface)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, scene.width)
    axes.set_ylim(scene.height, 0)
    axes.axis("off")
    numbered = enumerate(scene.items)
    for bare, run in groupby(numbered, lambda pair: _is_bare(pair[1])):
        if bare:
            _add_bare_rects(axes, list(run), theme)
        else:
            for order, item in run:
                _add(axes, item, theme, order)
    return figure


def _colour(name: str, theme: Theme) -> str:
    if name in PAINTS:
        return PAINTS[name].fill
    mixed = {"panel": PANEL_OPACITY, "rule": RULE_OPACITY}
    if name in mixed:
        return blend(GREY, theme.surface, mixed[name])
    return {"surface": theme.surface, "ink": theme.ink, "muted": blend(theme.ink, theme.surface, MUTED_OPACITY)}[name]


def label_colour(label: Label, theme: Theme) -> str:
    return PAINTS[label.on].text if label.on else _colour(label.colour, theme)


def _add(axes: Axes, item: Rect | Label | Line, theme: Theme, order: int) -> None:
    add = _add_rect if isinstance(item, Rect) else _add_label if isinstance(item, Label) else _add_line
    add(axes, item, theme, order)


def _is_bare(item: Rect | Label | Line) -> bool:
    """A filled rectangle and nothing else. A picture of 20,000 spans has thousands; one by one they take seconds."""
    if not isinstance(item, Rect) or not item.fill or item.texture or item.stroke:
        return False
    is_round = item.radius and min(item.width, item.height) > 2 * item.radius
    return not is_round and not (outline(item) and not is_thin(item))


def _add_bare_rects(axes: Axes, run: list[tuple[int, Rect]], theme: Theme) -> None:
    """Neighbours in the order of drawing, as one collection."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba

    items = [item for _, item in run]
    colours = [to_rgba(outline(item) or _colour(item.fill, theme), item.opacity) for item in items]
    axes.add_artist(
        PolyCollection([_corners(item) for item in items], facecolors=colours, linewidths=0, zorder=run[0][0])
    )


def _corners(item: Rect) -> list[tuple[float, float]]:
    left, top, right, bottom = item.x, item.y, item.x + item.width, item.y + item.height
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _shape(item: Rect, **look: object):
    from matplotlib.patches import FancyBboxPatch, Rectangle

    if not item.radius or min(item.width, item.height) <= 2 * item.radius:
        return Rectangle((item.x, item.y), item.width, item.height, **look)
    style = f"round,pad=0,rounding_size={item.radius}"
    return FancyBboxPatch((item.x, item.y), item.width, item.height, boxstyle=style, **look)


def _add_rect(axes: Axes, item: Rect, theme: Theme, order: int) -> None:
    edge = outline(item)
    if item.fill:
        fill = edge if edge and is_thin(item) else _colour(item.fill, theme)
        axes.add_artist(_shape(item, facecolor=fill, linewidth=0, alpha=item.opacity, zorder=order))
    if item.texture:
        over = PAINTS[item.fill].overlay if item.fill in PAINTS else GREY
        under = _colour(item.fill, theme) if item.fill else theme.surface
        ink = blend(over, under, _HATCH_OPACITY[item.texture])
        look = {"fill": False, "edgecolor": ink, "hatch": _HATCHES[item.texture], "linewidth": 0}
        axes.add_artist(_shape(item, **look, zorder=order + 0.1))
    if item.stroke:
        look = {"fill": False, "edgecolor": _colour(item.stroke, theme), "linewidth": item.stroke_width}
        axes.add_artist(_shape(item, **look, zorder=order + 0.2))
    elif edge and not is_thin(item):
        inner = replace(item, x=item.x + 0.5, y=item.y + 0.5, width=item.width - 1, height=item.height - 1)
        axes.add_artist(_shape(inner, fill=False, edgecolor=edge, linewidth=1.0, zorder=order + 0.2))


def _add_label(axes: Axes, item: Label, theme: Theme, order: int) -> None:
    align = {"start": "left", "middle": "center", "end": "right"}[item.anchor]
    look = {
        "fontsize": item.size * 0.93,
        "color": label_colour(item, theme),
        "fontweight": "bold" if item.bold else "normal",
    }
    text = item.text.replace("$", r"\$")
    axes.text(item.x, item.y, text, ha=align, va="center_baseline", zorder=order, **look)


def _add_line(axes: Axes, item: Line, theme: Theme, order: int) -> None:
    colour = _colour(item.colour, theme)
    style = (0, (4, 3)) if item.dashed else "solid"
    xs, ys = (item.x1, item.x2), (item.y1, item.y2)
    axes.plot(xs, ys, color=colour, linewidth=item.width, linestyle=style, zorder=order, solid_capstyle="butt")
    if item.arrow:
        axes.fill(*zip(*arrow_head(item), strict=True), color=colour, linewidth=0, zorder=order)
