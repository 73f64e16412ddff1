"""Provides the dials of every explorer, sliders and lists that the arrow keys move, and the panel that aligns them.

An explorer is a widget whose dials change a picture. `dial` makes a slider, `choice` a drop-down list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ipywidgets

from helpers.draw.scene import text_width

WIDTH = 360  # pixels of a dial, so that two fit beside each other on a notebook's 800
_FONT = 13  # pixels, JupyterLab's
_MARGINS = 12  # pixels that ipywidgets adds beside a dial and its readout


def dial(
    options: Iterable[object], value: object, description: str, *, label: Callable = str, tooltip: str = ""
) -> ipywidgets.SelectionSlider:
    """A slider over named values. options: values, or pairs (text, value). value: where it starts.

    label: a function that gives the text of a value, for options that are no pairs. tooltip: what the dial means, in a
    few words. Raises ValueError when `value` is not among the options.
    """
    return _selection(ipywidgets.SelectionSlider, options, value, description, label, tooltip)


def choice(
    options: Iterable[object], value: object, description: str, *, label: Callable = str, tooltip: str = ""
) -> ipywidgets.Dropdown:
    """A drop-down list, for options without an order. Arguments and errors are those of `dial`."""
    return _selection(ipywidgets.Dropdown, options, value, description, label, tooltip)


def _selection(
    kind: type, options: Iterable[object], value: object, description: str, label: Callable, tooltip: str
) -> Any:
    """A widget of the class `kind`. `options` are those of `dial`; every option becomes a pair (text, value)."""
    pairs = [option if isinstance(option, tuple) else (label(option), option) for option in options]
    if value not in [known for _, known in pairs]:
        names = ", ".join(name for name, _ in pairs)
        raise ValueError(f"the dial {description!r} would start at {value!r}; expected one of {names}")
    return kind(
        options=pairs,
        value=value,
        description=description,
        tooltip=tooltip or None,
        layout=ipywidgets.Layout(width=f"{WIDTH}px", max_width=f"calc(100% - {_MARGINS}px)"),
        style={"description_width": "initial"},
    )


def panel(dials: Sequence[ipywidgets.Widget]) -> ipywidgets.GridBox:
    """The dials in a grid, as many beside each other as fit. On a page narrower than one dial they shrink.

    All labels get the width of the longest one, so that none is cut off.
    """
    # Six pixels more than estimated, because capital letters are wider than `text_width` assumes.
    width = 6 + max((text_width(each.description, _FONT) for each in dials), default=0.0)
    for each in dials:
        each.tooltip = each.tooltip or each.description
        each.style.description_width = f"{width:.0f}px"
    columns = f"repeat(auto-fill, min(100%, {WIDTH + 8}px))"
    return ipywidgets.GridBox(dials, layout=ipywidgets.Layout(grid_template_columns=columns, max_width="1120px"))
