"""Draws a Scene as the text of one SVG element, for live views: `to_svg`.

The element has no script and loads nothing. Inside JupyterLab the colours of text and background follow its theme (its
CSS variables); elsewhere they follow the reader's system, and on paper they are dark on white. Nothing moves. Ids are
made from the content, so the same Scene always gives the same text.
"""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache
from html import escape

from helpers.draw.palette import DARK, GREY, LIGHT, MUTED_OPACITY, PAINTS, PANEL_OPACITY, RULE_OPACITY, Theme
from helpers.draw.scene import SHOWN, Label, Line, Rect, Scene

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_ARROW = 7.0  # pixels of an arrow head's length
_SCOPE = "\0"  # stands for the id of the element until its content, of which the id is made, is known


@lru_cache(maxsize=8192)  # a picture has thousands of numbers, and many of them again and again
def _number(value: float) -> str:
    """A number with two decimals at most, and one from 10 on, where a tenth of a pixel is enough."""
    return f"{value:.{1 if abs(value) >= 10 else 2}f}".rstrip("0").rstrip(".")


@cache
def _colour(name: str, attribute: str = "fill") -> str:
    """The SVG attributes that give `attribute`, "fill" or "stroke", the colour of a kind or role."""
    if name in PAINTS:
        return f'{attribute}="{PAINTS[name].fill}"'
    if name in ("panel", "rule"):
        opacity = PANEL_OPACITY if name == "panel" else RULE_OPACITY
        return f'{attribute}="{GREY}" {attribute}-opacity="{opacity}"'
    muted = f' {attribute}-opacity="{MUTED_OPACITY}"' if name == "muted" else ""
    variable = "--rr-surface" if name == "surface" else "--rr-ink"
    return f'style="{attribute}:var({variable})"{muted}'


def _style(scope: str) -> str:
    """The CSS of the element with the id `scope`: its two variables for each theme, and no mouse events on texts."""

    def rule(ink: str, surface: str) -> str:
        return f"#{scope}{{--rr-ink:{ink};--rr-surface:{surface}}}"

    def themed(theme: Theme) -> str:
        return rule(f"var(--jp-content-font-color0,{theme.ink})", f"var(--jp-layout-color0,{theme.surface})")

    return (
        f"<style>{themed(LIGHT)}@media (prefers-color-scheme:dark){{{themed(DARK)}}}"
        f"@media print{{{rule(LIGHT.ink, LIGHT.surface)}}}#{scope} text{{pointer-events:none}}</style>"
    )


_PATTERN_TURNS = {"stripes": ' patternTransform="rotate(45)"', "hatch": ' patternTransform="rotate(-45)"'}
# The mark that the pattern of a texture repeats. `_pattern` replaces {} by 'fill="#ffffff" fill', with the texture's
# colour, so that two attributes result: fill and fill-opacity.
_PATTERN_MARKS = {
    "dots": '<circle cx="3" cy="3" r="1.1" {}-opacity=".6"/>',
    "lines": '<rect width="5" height="1" {}-opacity=".45"/>',
    "stripes": '<rect width="1.6" height="6" {}-opacity=".32"/>',
    "hatch": '<rect width="1" height="6" {}-opacity=".9"/>',
}


def _pattern(fill: str, texture: str) -> str:
    """The pattern of a fill and a texture together, so that a textured rectangle is one element."""
    size = 5 if texture == "lines" else 6
    background = f'<rect width="{size}" height="{size}" {_colour(fill)}/>' if fill else ""
    overlay = PAINTS[fill].overlay if fill in PAINTS else GREY
    mark = _PATTERN_MARKS[texture].format(f'fill="{overlay}" fill')
    name = f"{_SCOPE}-{fill or 'none'}-{texture}"
    head = f'<pattern id="{name}" patternUnits="userSpaceOnUse" width="{size}" height="{size}"'
    return f"{head}{_PATTERN_TURNS.get(texture, '')}>{background}{mark}</pattern>"


@cache
def _fill(fill: str, texture: str) -> str:
    """The SVG attribute that fills a rectangle: a pattern where it has a texture."""
    if texture:
        return f'fill="url(#{_SCOPE}-{fill or "none"}-{texture})"'
    return _colour(fill) if fill else 'fill="none"'


def _rect(item: Rect) -> str:
    """A rectangle, with its tooltip as a title, and as a button where it can be picked."""
    x, y, width, height, fill = item.x, item.y, item.width, item.height, _fill(item.fill, item.texture)
    if item.stroke:
        fill += f' {_colour(item.stroke, "stroke")} stroke-width="{_number(item.stroke_width)}"'
    elif outline(item):
        if is_thin(item):
            fill = f'fill="{outline(item)}"'
        else:
            x, y, width, height = x + 0.5, y + 0.5, width - 1, height - 1
            fill += f' stroke="{outline(item)}"'
    text = f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
    text += f' rx="{_number(item.radius)}" {fill}' if item.radius else f" {fill}"
    text += f' opacity="{_number(item.opacity)}"' if item.opacity != 1 else ""
    # tabindex is 0 for the picked rectangle and -1 for others, so the Tab key stops only at the picked one. "lm" is
    # Lumino, JupyterLab's toolkit, whose own shortcuts must not take the keys that are pressed on the rectangle.
    if item.pick:
        text += f' data-pick="{escape(item.pick)}" role="button" aria-pressed="{str(item.is_picked).lower()}"'
        text += f' tabindex="{item.is_picked - 1}" data-lm-suppress-shortcuts="true"'
    return f"{text}><title>{escape(item.tooltip)}</title></rect>" if item.tooltip else f"{text}/>"


def outline(item: Rect) -> str:
    """The colour of the outline that a pale fill needs, or "".

    A fill with less than full opacity gets none, since what it shows stands beside it as a text, too.
    """
    if item.fill not in PAINTS or item.stroke or item.opacity != 1:
        return ""
    paint = PAINTS[item.fill]
    return paint.edge if paint.edge != paint.fill else ""  # a dark fill is its own edge


def is_thin(item: Rect) -> bool:
    """Whether a rectangle has no room inside for an outline, whose colour then replaces the fill."""
    return min(item.width, item.height) < 3


def _label(item: Label) -> str:
    """A text; where no colour is set, it inherits ink from the SVG element."""
    colour = f' fill="{PAINTS[item.on].text}"' if item.on else ""
    colour += f' fill-opacity="{MUTED_OPACITY}"' if item.colour == "muted" and not item.on else ""
    anchor = f' text-anchor="{item.anchor}"' if item.anchor != "start" else ""
    weight = ' font-weight="600"' if item.bold else ""
    place = f'x="{_number(item.x)}" y="{_number(item.y)}" dy=".35em" font-size="{_number(item.size)}"'
    return f"<text {place}{colour}{anchor}{weight}>{escape(item.text)}</text>"


def arrow_head(line: Line) -> tuple[tuple[float, float], ...]:
    """The three corners of the arrow head at the line's end."""
    dx, dy = line.x2 - line.x1, line.y2 - line.y1
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    ux, uy = dx / length * _ARROW, dy / length * _ARROW  # along the line, as long as the head
    back_x, back_y = line.x2 - ux, line.y2 - uy
    return (line.x2, line.y2), (back_x - uy / 2, back_y + ux / 2), (back_x + uy / 2, back_y - ux / 2)


def _line(item: Line) -> str:
    """A line, and behind it the triangle of its arrow head if it has one."""
    ends = f'x1="{_number(item.x1)}" y1="{_number(item.y1)}" x2="{_number(item.x2)}" y2="{_number(item.y2)}"'
    dashed = ' stroke-dasharray="4 3"' if item.dashed else ""
    title = f"<title>{escape(item.tooltip)}</title>" if item.tooltip else ""
    text = f'<line {ends} {_colour(item.colour, "stroke")} stroke-width="{_number(item.width)}"{dashed}>{title}</line>'
    if item.arrow:
        points = " ".join(f"{_number(x)},{_number(y)}" for x, y in arrow_head(item))
        text += f'<polygon points="{points}" {_colour(item.colour)}/>'
    return text


_ELEMENTS = {Rect: _rect, Label: _label, Line: _line}  # the function that writes an item, by its class


def to_svg(scene: Scene) -> str:
    """The SVG element of a Scene, with the Scene's title and summary as its title and description.

    Its role is "img", or "group" where something in it can be clicked.
    """
    textured = dict.fromkeys(
        (item.fill, item.texture) for item in scene.items if isinstance(item, Rect) and item.texture
    )
    patterns = "".join(_pattern(*look) for look in textured)
    surface = Rect(x=0, y=0, width=scene.width, height=scene.height, fill="surface", radius=6)
    body = "".join(_ELEMENTS[type(item)](item) for item in (surface, *scene.items))
    view_box = f"0 0 {_number(scene.width)} {_number(scene.height)}"
    width, height = _number(scene.width * SHOWN), _number(scene.height * SHOWN)
    role = "group" if any(isinstance(item, Rect) and item.pick for item in scene.items) else "img"
    size = f'width="{width}" height="{height}" viewBox="{view_box}" role="{role}"'
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{_SCOPE}" {size} font-family="{FONT}" '
        f'aria-labelledby="{_SCOPE}-t {_SCOPE}-d" style="max-width:100%;height:auto;fill:var(--rr-ink)">'
        f'<title id="{_SCOPE}-t">{escape(scene.title)}</title><desc id="{_SCOPE}-d">{escape(scene.summary)}</desc>'
        f"{_style(_SCOPE)}<defs>{patterns}</defs>{body}</svg>"
    )
    return text.replace(_SCOPE, "rr" + hashlib.blake2s(text.encode(), digest_size=5).hexdigest())
