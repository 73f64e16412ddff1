"""Provides ExplorerView, which shows an Explorer in a notebook: an ipywidget for each of its controls, and the picture.

The view and the explorer change each other. What the learner turns becomes the value of a control, after which the
explorer draws and calls `refresh`, which copies everything that changed to the widgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import anywidget
import ipywidgets

from helpers.draw import Scene
from helpers.draw.palette import words  # the texts that are shown, by name: learner/words/draw.yaml
from helpers.draw.picture import STYLE
from helpers.draw.scene import SHOWN, text_width
from helpers.learner.document import table
from helpers.widgets.controls import Button, Control, Dial, Group, Notice, NumberBox, Picks, Steps
from helpers.widgets.explorer import Explorer, Rows
from helpers.widgets.view import DIAL_WIDTH, STATIC, SavedWidget, button, dial_widget, display, row, style_sheet

# STYLE gives saved pictures a dark background in a dark theme; explorer.css is for the explorer itself.
_STYLE = f"<style>{STYLE}{(STATIC / 'explorer.css').read_text()}</style>"
_SENTENCE = "font-size:15px;line-height:1.4;min-height:2.8em;max-width:972px;margin:6px 14px;white-space:normal"
_ALERT = f"{_SENTENCE};padding:0 14px;border-left:4px solid var(--jp-warn-color1,#c60);box-sizing:border-box"
_FAILURE = "margin:2px 14px;padding:6px 14px;border-left:4px solid var(--jp-warn-color1,#c60);white-space:pre-wrap"
_NARROWEST_DIAL = 300  # pixels, of one that fills the width
_FONT = 13  # pixels, JupyterLab's
_COLUMN, _LABEL, _BOX = 262, 100, 190  # widths in pixels of an arrangement: a column, a dial's label, a number box
_INTERVAL = 1200  # milliseconds that Play shows each step: time to read its sentence


class ExplorerView(SavedWidget, ipywidgets.VBox):
    """An Explorer in a notebook: the controls, the sentence above the picture, and the table, folded, below it."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer, self.TEXT = explorer, explorer.TEXT
        self._widgets: dict[Control, ipywidgets.Widget] = {}
        self._is_refreshing = False  # True while the widgets are set, so that they do not set the controls
        self.html, self.table = ipywidgets.HTML(), ipywidgets.HTML()
        self._tallest = 0.0  # the height of the tallest picture so far
        # The fold is a heading that opens the table. It is never sent again, so it stays open while dials move; the
        # table below it is a widget of its own.
        self._fold = ipywidgets.HTML(f"{_STYLE}<details><summary>{words('table')}</summary></details>")
        self._fold.add_class("rr-fold")
        self.table.add_class("rr-table")
        self.footer = ipywidgets.HTML()
        below = [self.footer, style_sheet(explorer.STYLE_SHEET)] if explorer.STYLE_SHEET else []
        super().__init__([self._above(), *self._controls(), self.html, self._fold, self.table, *below])
        self.add_class("rr-explorer")
        if explorer.STYLE_SHEET:
            self.add_class(f"rr-{explorer.STYLE_SHEET}")
        self.refresh()

    @property
    def saved(self) -> Scene:
        """What a saved notebook keeps."""
        return self.explorer.saved

    def widget_of(self, control: Control) -> ipywidgets.Widget:
        """The widget that shows this control. Raises KeyError for a control of another explorer."""
        return self._widgets[control]

    # -- the controls --------------------------------------------------------------------------------------------------
    def _above(self) -> ipywidgets.Widget:
        """The dials: in a grid, or as the explorer arranges them."""
        dials = [self._made(dial) for dial in self.explorer.dials]
        _align(dials)
        if self.explorer.arrangement:
            return ipywidgets.VBox([self._arranged_row(controls) for controls in self.explorer.arrangement])
        return _panel(dials, stretches=self.explorer.STRETCHES_DIALS)

    def _arranged_row(self, controls: Sequence[Control | Group]) -> ipywidgets.HBox:
        """Groups as columns, or controls without a heading, beside each other; on a narrow page they wrap."""
        widgets = []
        for each in controls:
            if isinstance(each, Group):
                widgets.append(self._column(each))
                continue
            widget = self._made(each)
            widgets.append(widget)
            if isinstance(each, NumberBox):
                widget.layout.width = f"{_BOX}px"
            else:  # two of 1.5 columns are as wide as three columns
                _size(widget, f"{1.5 * _COLUMN:.0f}px", "62px")
        return ipywidgets.HBox(widgets, layout={"flex_flow": "row wrap"})

    def _column(self, group: Group) -> ipywidgets.VBox:
        """The controls below each other, under the heading. A button is aligned with the sliders above it."""
        widgets = [self._made(control) for control in group.controls]
        for widget in widgets:
            if isinstance(widget, ipywidgets.Button):
                layout = {"width": f"{_COLUMN - _LABEL - 14}px", "margin": f"4px 2px 2px {_LABEL + 8}px"}
                widget.layout = ipywidgets.Layout(**layout)
            else:
                _size(widget, f"{_COLUMN - 6}px", f"{_LABEL}px")
        title = ipywidgets.HTML(f'<b style="font-size:13px;margin-left:8px">{group.heading}</b>')
        return ipywidgets.VBox([title, *widgets], layout={"width": f"{_COLUMN}px"})

    def _controls(self) -> list[ipywidgets.Widget]:
        """The controls between the dials and the picture; where there are steps, all stand in one row."""
        controls = self.explorer.controls
        widgets = [self._made(control) for control in controls]
        if any(isinstance(control, Steps) for control in controls):
            return [row(*widgets)]
        for widget in widgets:
            if isinstance(widget, ipywidgets.ToggleButtons):
                widget.layout.margin = "4px 12px"  # that a row has
        return widgets

    def _made(self, control: Control) -> ipywidgets.Widget:
        """The widget of a control, which sets the control when the learner changes it. It is made only once."""
        if control not in self._widgets:
            self._widgets[control] = _WIDGETS[type(control)](control)
            self._listen(control)
        return self._widgets[control]

    def _listen(self, control: Control) -> None:
        """Set the control when the learner changes its widget."""
        widget = self._widgets[control]
        if isinstance(control, Dial):
            widget.observe(lambda change: self._choose(control, change.new), names="index")
        elif isinstance(control, Steps):
            widget.step.observe(lambda change: self._set(control, change.new), names="value")
        elif isinstance(control, NumberBox):
            widget.observe(lambda change: self._set(control, change.new), names="value")

    def _choose(self, dial: Dial, index: int) -> None:
        """The learner turned a dial."""
        if not self._is_refreshing:
            dial.value = dial.options[index][1]

    def _set(self, control: Control, value: int) -> None:
        """The learner chose a number."""
        if not self._is_refreshing:
            control.value = value

    # -- what changed --------------------------------------------------------------------------------------------------
    def refresh(self) -> None:
        """Show the explorer as it is now. What did not change is not sent to the browser."""
        self._is_refreshing = True
        try:
            for control, widget in self._widgets.items():
                _copy(control, widget)
        finally:
            self._is_refreshing = False
        explorer = self.explorer
        write = _alert_html if explorer.is_problem else _picture_html
        self.html.value = write(explorer.shown_sentence, explorer.svg)
        self.table.value = _table_html(explorer.shown_rows)
        self._fold.layout.display = "" if explorer.shown_rows else "none"
        if explorer.shown_scene is not None:
            self._keep_height(explorer.shown_scene)
        if explorer.STYLE_SHEET:
            self.footer.value = explorer.footer

    def _keep_height(self, scene: Scene) -> None:
        """Let the picture's area never shrink, so that the page below it does not jump while a dial moves."""
        if scene.height > self._tallest:
            self._tallest = scene.height
            # A page shows a Scene SHOWN times its own size. On a narrow page it shrinks to the page's width (100cqw).
            scaled = f"{100 * scene.height / scene.width:.1f}cqw"
            # 64 pixels are for the sentence above the picture.
            self.html.layout.min_height = f"calc(64px + min({scene.height * SHOWN:.0f}px, {scaled}))"


def _copy(control: Control, widget: Any) -> None:
    """Set the widget to the state of its control."""
    if isinstance(control, Notice):
        widget.value = f'<div role="alert" style="{_FAILURE}">{escape(control.text)}</div>' if control.text else ""
    elif isinstance(control, Steps):
        widget.fit(control.max)
        widget.step.value = control.value
        for part in widget.children:
            part.disabled = control.disabled
    elif isinstance(control, Dial):
        texts = tuple(text for text, _ in control.options)
        if widget.options != texts:
            widget.options = texts
        widget.index = control.index
    elif isinstance(control, NumberBox):
        widget.value = control.value
    elif isinstance(control, Button):
        widget.description = control.description
    if isinstance(control, Dial | NumberBox | Button):
        widget.disabled = control.disabled
        if control.is_shown == (widget.layout.display == "none"):
            display(widget, control.is_shown)


def _picture_html(sentence: str, picture: str) -> str:
    """The sentence above the picture; "polite" lets a screen reader say it when it changes."""
    return f'<p style="{_SENTENCE}" aria-live="polite">{escape(sentence)}</p>{picture}'


def _alert_html(sentence: str, last: str) -> str:
    """A message above the last picture, which turns pale and takes no clicks ("inert")."""
    return f'<p role="alert" style="{_ALERT}">{escape(sentence)}</p><div inert="" style="opacity:.25">{last}</div>'


def _table_html(rows: Rows) -> str:
    """The table as HTML; "" without rows."""
    return table([*rows[0]], [[*row.values()] for row in rows], has_row_heads=True).html if rows else ""


# -- a widget for each control ---------------------------------------------------------------------------------------
def _dial(dial: Dial) -> ipywidgets.Widget:
    """A slider, a list or buttons."""
    texts = [text for text, _ in dial.options]
    if dial.kind == "buttons":
        buttons = ipywidgets.ToggleButtons(options=texts, index=dial.index, tooltips=dial.tooltips)
        buttons.style.button_width = f"{dial.button_width}px"
        return buttons
    traits = {"options": texts, "index": dial.index, "description": dial.description, "tooltip": dial.tooltip}
    if dial.kind == "list":
        return dial_widget(ipywidgets.Dropdown, **traits)
    return dial_widget(ipywidgets.SelectionSlider, **traits, continuous_update=dial.is_live)


def _number_box(box: NumberBox) -> ipywidgets.IntText:
    return ipywidgets.IntText(value=box.value, description=box.description, tooltip=box.tooltip)


def _button(control: Button) -> ipywidgets.Button:
    """A button that is aligned with the sentence below it."""
    made = button(control.click, control.description, tooltip=control.tooltip)
    width = {"width": "auto", "max_width": "348px"} if control.is_wide else {}
    made.layout = ipywidgets.Layout(margin="2px 14px", **width)
    return made


class Stepper(ipywidgets.HBox):
    """Buttons "previous" and "next", Play, and a slider `step` from 1 to the number of steps."""

    def __init__(self, steps: Steps) -> None:
        labels = {"description": steps.description, "tooltip": steps.tooltip}
        self.step = ipywidgets.IntSlider(value=1, min=1, max=1, **labels)
        self.step.style.description_width, self.step.layout.width = "initial", "270px"
        options = {"interval": _INTERVAL, "show_repeat": False, "tooltip": words("step.plays")}
        self.play = ipywidgets.Play(value=1, min=1, max=1, **options)
        ipywidgets.jslink((self.play, "value"), (self.step, "value"))  # linked in the browser, without the kernel
        self.play.layout.width = "96px"
        moves = {"previous": lambda: self._move(-1), "next": lambda: self._move(1)}
        buttons = [button(act, words(f"step.{name}"), tooltip=words(f"step.the_{name}")) for name, act in moves.items()]
        for each in buttons:
            each.layout.width = "80px"
        super().__init__([*buttons, self.play, self.step])
        self.layout.flex_flow, self.layout.align_items = "row wrap", "center"

    def fit(self, num_steps: int) -> None:
        """Set the last step of the slider; where it stood beyond, it moves there."""
        for each in (self.play, self.step):
            each.max = num_steps

    def _move(self, by: int) -> None:
        """Go forward by this number of steps, or back where it is negative, but not beyond the first or last step."""
        self.step.value = min(max(self.step.value + by, self.step.min), self.step.max)


class PicksView(anywidget.AnyWidget):
    """An invisible widget that makes each Rect of the picture that has a `pick` clickable: see Picks."""

    _esm = STATIC / "picks.js"
    _css = """.rr-explorer [data-pick] {pointer-events: all; cursor: pointer; outline: none}
.rr-explorer [data-pick]:focus-visible {outline: 3px solid var(--jp-brand-color1, #0072b2); outline-offset: 1px}"""

    def __init__(self, picks: Picks) -> None:
        super().__init__()
        self._picks = picks
        self.on_msg(self._receive)

    def _receive(self, widget: object, content: Any, buffers: object) -> None:
        """A message from picks.js: {"pick": "3"}."""
        if isinstance(content, dict) and isinstance(content.get("pick"), str):
            self._picks.act(content["pick"])


_WIDGETS = {
    Dial: _dial,
    NumberBox: _number_box,
    Button: _button,
    Steps: Stepper,
    Notice: lambda notice: ipywidgets.HTML(),
    Picks: PicksView,
}


# -- where they stand ------------------------------------------------------------------------------------------------
def _align(dials: Sequence[ipywidgets.Widget]) -> None:
    """Give all labels the width of the longest one, so that none is cut off."""
    # Six pixels more than estimated, because capital letters are wider than `text_width` assumes.
    width = 6 + max((text_width(each.description, _FONT) for each in dials), default=0.0)
    for each in dials:
        each.style.description_width = f"{width:.0f}px"


def _panel(dials: Sequence[ipywidgets.Widget], *, stretches: bool) -> ipywidgets.GridBox:
    """The dials in a grid, as many beside each other as fit. On a page narrower than one dial they shrink.

    stretches: the dials fill the width.
    """
    columns = f"repeat(auto-fill, min(100%, {DIAL_WIDTH + 8}px))"
    if stretches:
        columns = f"repeat(auto-fit, minmax({_NARROWEST_DIAL}px, 1fr))"
        for each in dials:
            each.layout.width = "auto"
    return ipywidgets.GridBox(dials, layout=ipywidgets.Layout(grid_template_columns=columns, max_width="1120px"))


def _size(widget: ipywidgets.Widget, width: str, label: str) -> None:
    """Set the width of a widget and of its label."""
    widget.layout.width, widget.style.description_width = width, label
