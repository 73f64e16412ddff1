"""What may stand below a result, a Scene, a widget, a matplotlib figure or a text: live, and in a saved notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets

from helpers.draw import Chart, Picture, Scene, to_svg
from helpers.draw.picture import encoded_figure
from helpers.draw.picture import Bundle, png_metadata
from helpers.draw.picture import saved_bundle as saved_scene
from helpers.draw.scene import WIDTH
from helpers.interview.render import paragraphs
from helpers.learner.words import Words
from helpers.widgets.explorer import Explorer, with_sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def live(shown: Any) -> ipywidgets.Widget:
    """As it stands in a running notebook. What is of no kind that is known here is shown as its text."""
    if isinstance(shown, ipywidgets.Widget):
        return shown
    if isinstance(shown, Picture):
        shown = shown.scene
    if isinstance(shown, Chart):
        shown = shown.axes.figure
    made = ipywidgets.HTML(_html(shown))
    made.add_class("rr-guess")
    return made


def saved(shown: Sequence[Any], sentence: str) -> Bundle:
    """What keeps the first picture, with the sentence below it: data and metadata, both empty without one."""
    for one in (each.axes.figure if isinstance(each, Chart) else each for each in shown):
        if isinstance(one, Picture | Scene):
            return saved_scene(with_sentence(one.scene if isinstance(one, Picture) else one, sentence))
        if isinstance(one, Explorer):
            return saved_scene(one.saved)
        if _is_figure(one):
            return {"image/png": _png(one)}, png_metadata(WIDTH, f"{_title(one)}. {sentence}")
    return {}, {}


def _html(shown: Any) -> str:
    if isinstance(shown, Scene):
        return to_svg(shown)
    if isinstance(shown, str | Words):
        return f'<div style="margin:0 14px">{paragraphs(str(shown))}</div>'  # where pictures begin
    if _is_figure(shown):
        look = f'class="rr-light" alt="{escape(_title(shown))}"'
        return f'<img {look} src="data:image/png;base64,{_png(shown)}">'
    return f"<pre>{escape(str(shown))}</pre>"


def _is_figure(shown: Any) -> bool:
    return type(shown).__module__ == "matplotlib.figure" and hasattr(shown, "savefig")


def _title(figure: Figure) -> str:
    return "; ".join(filter(None, [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)])) or "figure"


def _png(figure: Figure) -> str:
    """The figure as PNG; it is closed, or Jupyter would show it beside the fold."""
    from matplotlib import pyplot

    written = encoded_figure(figure, bbox_inches="tight", dpi=110)
    pyplot.close(figure)
    return written
