"""Provides SavedWidget, the base of all widgets of the course, and the small parts they share: buttons, rows, CSS.

A saved notebook keeps of each widget a text that never changes and a picture or some HTML; SavedWidget says which. A
Scene is a picture as plain data, from which helpers.draw makes SVG or PNG.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets

from helpers.draw.picture import Bundle, saved_bundle
from helpers.draw.png import png_language
from helpers.draw.scene import Scene
from helpers.learner.hooks import OURS, WIDGET_VIEW
from helpers.learner.words import use_language
from helpers.widgets.controls import choice

STATIC = Path(__file__).parent / "static"
DIAL_WIDTH = 360  # pixels of a dial, so that two fit beside each other on a notebook's 800
_MARGINS = 12  # pixels that ipywidgets adds beside a dial and its readout


class SavedWidget:
    """Mixed into a widget, before the widget's own class: what a notebook saves of it.

    TEXT: the text output, which tests compare, so it is the same whatever the learner did. `saved`: a Scene, which is
    saved as a PNG. `saved_html`: HTML, for a widget without a picture. Neither may show what the learner did.
    """

    TEXT = ""
    PNG_OPTIONS: Mapping[str, int] = {}  # arguments of to_png
    saved: Scene | None = None
    saved_html = ""

    def __repr__(self) -> str:
        return self.TEXT

    def _saved_data(self) -> Bundle:
        """Data by MIME type, and their metadata."""
        with use_language(png_language()):  # English where this machine has no font with Chinese letters
            scene = self.saved
        if scene is not None:
            return saved_bundle(scene, **self.PNG_OPTIONS)
        return ({"text/html": self.saved_html} if self.saved_html else {}), {}

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None, **kwargs: Any
    ) -> Bundle | dict[str, Any]:
        """The live view for a front end, and beside it what is shown where there is none."""
        if hasattr(super(), "_repr_mimebundle_"):
            live = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        else:  # ipywidgets 7, which Colab has
            live = {WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": self.model_id}}
        # ipywidgets returns the data, or a pair of data and metadata.
        data = dict((live[0] if isinstance(live, tuple) else live) or {})
        if WIDGET_VIEW in data:
            data[WIDGET_VIEW] = {**data[WIDGET_VIEW], OURS: True}
        saved, metadata = self._saved_data()
        data |= {"text/plain": repr(self)} | saved
        return (data, metadata) if metadata else data


class Page(ipywidgets.Output):
    """HTML whose links JupyterLab opens itself. A link in `ipywidgets.HTML` would reload the whole page instead.

    Only `outputs` is set and nothing is captured, so it works without a front end.
    """

    def show(self, html: str) -> None:
        """Show this HTML; "" hides the page."""
        data = {"text/html": html, "text/plain": ""}
        output = {"output_type": "display_data", "data": data, "metadata": {}}
        self.outputs = (output,) if html else ()
        self.layout.display = "" if html else "none"


def style_sheet(name: str) -> ipywidgets.HTML:
    """An invisible widget that brings `static/{name}.css` into the page; it stands first in a view."""
    widget = ipywidgets.HTML(f"<style>{(STATIC / f'{name}.css').read_text(encoding='utf-8')}</style>")
    widget.layout.display = "none"
    return widget


def button(
    act: Callable[[], object], description: str = "", *, style: str = "", tooltip: str = ""
) -> ipywidgets.Button:
    """A button that calls `act` without arguments. style: "primary" for the one to press next."""
    layout = ipywidgets.Layout(width="auto")
    made = ipywidgets.Button(description=description, button_style=style, tooltip=tooltip, layout=layout)
    made.on_click(lambda _: act())
    return made


def dial_widget(kind: Callable[..., ipywidgets.Widget], **traits: Any) -> Any:
    """A slider or a list, of the class `kind`, as wide as all dials are. On a page narrower than that it shrinks."""
    return kind(
        layout=ipywidgets.Layout(width=f"{DIAL_WIDTH}px", max_width=f"calc(100% - {_MARGINS}px)"),
        style={"description_width": "initial"},
        **traits,
    )


def dropdown(options: Sequence[tuple[str, Any]], value: Any, description: str) -> ipywidgets.Dropdown:
    """A drop-down list of pairs (text, value). Raises ValueError when `value` is not among them."""
    dial = choice(options, value, description)  # raises the ValueError
    return dial_widget(ipywidgets.Dropdown, options=dial.options, value=value, description=description)


def row(*widgets: ipywidgets.Widget) -> ipywidgets.HBox:
    """The widgets beside each other, wrapped where the page is narrow."""
    layout = ipywidgets.Layout(flex_flow="row wrap", align_items="center", margin="2px 12px")
    return ipywidgets.HBox(widgets, layout=layout)


def display(widget: ipywidgets.Widget, is_shown: bool) -> None:
    """Show or hide. A hidden widget stays in the tree, so that it can take the keyboard's focus at once."""
    widget.layout.display = "" if is_shown else "none"


def on_enter(field: ipywidgets.Text, act: Callable[[], object]) -> None:
    """Call `act` when the learner presses Enter in the field."""
    field.on_msg(lambda _, content, __: content.get("event") == "submit" and act())


def feedback_html(text: str, *, is_right: bool) -> str:
    """The verdict on an answer. The text also says whether it is right, for readers who do not see the colour."""
    return f'<p class="rr-said" data-right="{str(is_right).lower()}" aria-live="polite">{escape(text)}</p>'


def alert_html(text: str) -> str:
    """A problem that a screen reader announces at once; "" for no problem."""
    return f'<p role="alert">{escape(text)}</p>' if text else ""
