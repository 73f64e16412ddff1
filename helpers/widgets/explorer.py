"""Provides the base classes of every explorer: Explorer, SteppedExplorer, RunButton and Picks.

An Explorer has dials, a sentence, a picture, its numbers as a table, and a PNG for saved notebooks. SteppedExplorer
adds buttons that walk through numbered steps, RunButton adds one that runs on real ranks what the explorer predicts,
and Picks makes parts of the picture clickable. The explorers in the `*_explorer.py` files inherit from these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from typing import Any

import anywidget
import ipywidgets

from helpers.draw import Label, Scene, to_svg
from helpers.draw.palette import words  # the texts that are shown, by name: learner/words/draw.yaml
from helpers.draw.picture import STYLE
from helpers.draw.scene import SHOWN, WIDE, WIDTH, text_width
from helpers.learner.document import table
from helpers.learner.words import language, use_language
from helpers.learner.words.wrapping import aligned
from helpers.records import Timeline
from helpers.widgets.dials import panel
from helpers.widgets.view import STATIC, SavedWidget, button, row

Rows = Sequence[Mapping[str, str]]  # of a table: the text of each cell by the name of its column

# STYLE gives saved pictures a dark background in a dark theme; explorer.css is for the explorer itself.
_STYLE = f"<style>{STYLE}{(STATIC / 'explorer.css').read_text()}</style>"
_SENTENCE = "font-size:15px;line-height:1.4;min-height:2.8em;max-width:972px;margin:6px 14px;white-space:normal"
_ALERT = f"{_SENTENCE};padding:0 14px;border-left:4px solid var(--jp-warn-color1,#c60);box-sizing:border-box"
_FONT = 12  # pixels of the letters of the sentence in a saved picture
_NARROWEST_DIAL = 300  # pixels
# Lines may be wrapped between two matches: words, or single wide (Chinese) characters with the punctuation after them.
# WIDE is the first wide character, and \uffef the last one of Unicode's block of full-width forms.
_UNBREAKABLE = re.compile(rf"\s*(?:[{WIDE}-\uffef]|[^\s{WIDE}-\uffef]+)[，。；：、）]*")


class Explorer(SavedWidget, ipywidgets.VBox):
    """Base of a widget whose dials change a picture. A subclass makes its dials, then calls this constructor.

    It defines `scene` (the picture), `sentence`, `TEXT` (see SavedWidget) and, if it likes, `rows`, the numbers of the
    picture as a table that is folded below it. Where one of them raises ValueError, its message is shown and the last
    picture turns pale, until a dial has a valid value again. It works without a front end: set `.value` of a dial,
    then read `.text`, `.sentence`, `.rows`, `.scene` or `.html.value`.
    """

    scene: Scene
    sentence: str
    rows: Rows = ()

    def __init__(self, dials: Sequence[ipywidgets.Widget], *, controls: Sequence[ipywidgets.Widget] = ()) -> None:
        self.dials = tuple(dials)
        self.html, self.table = ipywidgets.HTML(), ipywidgets.HTML()
        self._tallest, self._picture = 0.0, ""  # the height of the tallest picture so far, and the last one as SVG
        # The fold is a heading that opens the table. It is never sent again, so it stays open while dials move; the
        # table below it is a widget of its own.
        self._fold = ipywidgets.HTML(f"{_STYLE}<details><summary>{words('table')}</summary></details>")
        self._fold.add_class("rr-fold")
        self.table.add_class("rr-table")
        for dial in self.dials:
            dial.observe(self._draw, names="value")
        super().__init__([panel(self.dials), *controls, self.html, self._fold, self.table])
        self.add_class("rr-explorer")
        self._draw()

    def _stretch_dials(self) -> None:
        """Let the dials fill the width: two stand beside each other even in a narrow window."""
        for dial in self.dials:
            dial.layout.width = "auto"
        self.children[0].layout.grid_template_columns = f"repeat(auto-fit, minmax({_NARROWEST_DIAL}px, 1fr))"

    @property
    def text(self) -> str:
        """The sentence and the table as plain text."""
        sentence, _, rows = self._computed()
        return "\n".join([sentence, *_plain_table(rows)])

    @property
    def saved(self) -> Scene:
        """What a saved notebook keeps: the picture with the sentence below it."""
        sentence, scene, _ = self._computed()
        return with_sentence(scene, sentence)

    def _computed(self) -> tuple[str, Scene | None, Rows]:
        """Sentence, picture and table for the dials' values; for an invalid setting the message alone."""
        try:
            return self.sentence, self.scene, self.rows
        except ValueError as error:
            return str(error), None, ()

    def _draw(self, change: object = None) -> None:
        """Show sentence, picture and table for the dials' values; `change` is what a dial reports, unused here."""
        with use_language(language()):  # looks the language up once instead of for each of a thousand texts
            sentence, scene, rows = self._computed()
        self._picture = to_svg(scene) if scene else self._picture
        self.html.value = (_picture_html if scene else _alert_html)(sentence, self._picture)
        self.table.value = _table_html(rows)
        self._fold.layout.display = "" if rows else "none"
        if scene is not None:
            self._keep_height(scene)

    def _keep_height(self, scene: Scene) -> None:
        """Let the picture's area never shrink, so that the page below it does not jump while a dial moves."""
        if scene.height > self._tallest:
            self._tallest = scene.height
            # A page shows a Scene SHOWN times its own size. On a narrow page it shrinks to the page's width (100cqw).
            scaled = f"{100 * scene.height / scene.width:.1f}cqw"
            # 64 pixels are for the sentence above the picture.
            self.html.layout.min_height = f"calc(64px + min({scene.height * SHOWN:.0f}px, {scaled}))"


def _picture_html(sentence: str, picture: str) -> str:
    """The sentence above the picture; "polite" lets a screen reader say it when it changes."""
    return f'<p style="{_SENTENCE}" aria-live="polite">{escape(sentence)}</p>{picture}'


def _alert_html(sentence: str, last: str) -> str:
    """A message above the last picture, which turns pale and takes no clicks ("inert")."""
    return f'<p role="alert" style="{_ALERT}">{escape(sentence)}</p><div inert="" style="opacity:.25">{last}</div>'


def _table_html(rows: Rows) -> str:
    """The table as HTML; "" without rows."""
    return table([*rows[0]], [[*row.values()] for row in rows], has_row_heads=True).html if rows else ""


def _plain_table(rows: Rows) -> list[str]:
    """The table in columns of equal width: one line for the names, one for each row."""
    lines = [[*rows[0]], *([*row.values()] for row in rows)] if rows else []
    return [line.rstrip() for line in aligned(lines, left=len(lines[0]))] if lines else []


def with_sentence(scene: Scene | None, sentence: str) -> Scene:
    """The Scene with the sentence below it, in lines that fit; without a Scene the sentence alone."""
    base = scene or Scene(width=WIDTH, height=10, title="no picture", summary="")
    lines = _wrapped(sentence, base.width - 28)
    labels = [Label(x=14, y=base.height + 10 + 18 * number, text=line, size=_FONT) for number, line in enumerate(lines)]
    summary = f"{base.summary} {sentence}".strip()
    return replace(base, height=base.height + 18 * len(lines) + 6, items=(*base.items, *labels), summary=summary)


def _wrapped(sentence: str, width: float) -> list[str]:
    """The sentence in lines that are at most `width` pixels wide."""
    lines = [""]
    for piece in _UNBREAKABLE.findall(sentence):
        longer = lines[-1] + piece
        if text_width(longer.strip(), _FONT) <= width:
            lines[-1] = longer
        else:
            lines.append(piece.lstrip())
    return [line.strip() for line in lines]


# -- steps -----------------------------------------------------------------------------------------------------------
_INTERVAL = 1200  # milliseconds that Play shows each step: time to read its sentence


class Stepper(ipywidgets.HBox):
    """Buttons "previous" and "next", Play, and a slider `step` from 1 to the number of steps.

    Nothing moves before the learner presses something. Without a front end, set `step.value`.
    """

    def __init__(self) -> None:
        labels = {"description": words("step.step"), "tooltip": words("step.which")}
        self.step = ipywidgets.IntSlider(value=1, min=1, max=1, **labels)
        self.step.style.description_width, self.step.layout.width = "initial", "270px"
        options = {"interval": _INTERVAL, "show_repeat": False, "tooltip": words("step.plays")}
        self.play = ipywidgets.Play(value=1, min=1, max=1, **options)
        ipywidgets.jslink((self.play, "value"), (self.step, "value"))  # linked in the browser, without the kernel
        self.play.layout.width = "96px"
        steps = {"previous": lambda: self._move(-1), "next": lambda: self._move(1)}
        buttons = [button(act, words(f"step.{name}"), tooltip=words(f"step.the_{name}")) for name, act in steps.items()]
        for each in buttons:
            each.layout.width = "80px"
        super().__init__([*buttons, self.play, self.step])
        self.layout.flex_flow, self.layout.align_items = "row wrap", "center"

    def fit(self, num_steps: int) -> None:
        """Set the last step of the slider; where it stood beyond, it moves there."""
        for each in (self.play, self.step):
            each.max = max(1, num_steps)

    def _move(self, by: int) -> None:
        """Go forward by this number of steps, or back where it is negative, but not beyond the first or last step."""
        self.step.value = min(max(self.step.value + by, self.step.min), self.step.max)


class SteppedExplorer(Explorer):
    """An Explorer whose subclass also defines `num_steps`. It draws the step `step.value`, counted from 1."""

    num_steps: int

    def __init__(self, dials: Sequence[ipywidgets.Widget], *, controls: Sequence[ipywidgets.Widget] = ()) -> None:
        self.stepper = Stepper()
        self.step = self.stepper.step
        self.step.observe(self._draw, names="value")
        super().__init__(dials, controls=[row(*controls, self.stepper)])

    def _draw(self, change: object = None) -> None:
        """First let the slider end at the last step."""
        with suppress(ValueError):  # an invalid setting has no steps; Explorer shows the message
            self.stepper.fit(self.num_steps)
        super()._draw(change)


# -- a button that runs, and clicks on the picture -------------------------------------------------------------------
_FAILURE = "margin:2px 14px;padding:6px 14px;border-left:4px solid var(--jp-warn-color1,#c60);white-space:pre-wrap"


class RunButton:
    """Mixed into an Explorer, before Explorer: a button that runs on real ranks what the explorer predicts.

    The subclass passes `_run_controls(run, tooltip)` to Explorer as controls, and its `_run_arguments` are what `run`
    is called with. run: a function that returns the Timeline of the step that it ran, or None for an explorer without
    the button. An exception in it becomes a message below the button. RUN_EXAMPLE: a function to name in an error.
    """

    RUN_EXAMPLE = ""

    def _run_controls(self, run: Callable[..., Timeline] | None, tooltip: str) -> list[ipywidgets.Widget]:
        """The button and the place for its message, as controls for Explorer; none without `run`."""
        self._run = run
        self._timelines: dict[tuple, Timeline] = {}  # setting of the dials -> what `run` returned for it
        self.button = button(self.run_now, words("run.run"), tooltip=tooltip)
        self.button.layout = ipywidgets.Layout(margin="2px 14px")  # aligned with the sentence below it
        self.notice, self.failure = ipywidgets.HTML(), ""
        return [self.button, self.notice] if run else []

    @property
    def _run_arguments(self) -> tuple[tuple, dict]:
        """The positional and the keyword arguments of `run` for the dials' values."""
        raise NotImplementedError

    @property
    def emulated(self) -> Timeline | None:
        """What `run` returned for the dials' values; None where the button was not pressed for these values.

        Such a run is called emulated, because its ranks are real processes, but durations and links are imitated.
        """
        return self._timelines.get(self._setting)

    def run_now(self):
        """Call `run` for the dials' values, as the button does. Returns the explorer, so that a cell can show it.

        Raises ValueError when there is no `run`.
        """
        if self._run is None:
            name = type(self).__name__
            raise ValueError(f"this {name} has nothing to run; give it run=, such as {self.RUN_EXAMPLE}")
        self._show_failure("")
        self.button.disabled, self.button.description = True, words("run.running")
        try:
            args, kwargs = self._run_arguments
            self._timelines[self._setting] = _checked_run(self._run(*args, **kwargs))
        except (Exception, KeyboardInterrupt) as error:  # of any kind: `run` may be any function
            self._timelines.pop(self._setting, None)
            is_interrupt = isinstance(error, KeyboardInterrupt)
            self._show_failure(words("run.interrupted") if is_interrupt else str(error) or type(error).__name__)
        finally:
            self.button.disabled, self.button.description = False, words("run.run")
        super()._draw()  # and not self._draw(), which would remove the message
        return self

    @property
    def text(self) -> str:
        """The sentence and the table as plain text; below them what went wrong in the last run."""
        return "\n".join(filter(None, [super().text, self.failure]))

    def _show_failure(self, failure: str) -> None:
        """Show a message below the button; "" removes it."""
        self.failure = failure
        self.notice.value = f'<div role="alert" style="{_FAILURE}">{escape(failure)}</div>' if failure else ""

    def _draw(self, change: object = None) -> None:
        """First remove the message of the last run."""
        self._show_failure("")  # the message was about the previous setting
        super()._draw(change)

    @property
    def _setting(self) -> tuple:
        """The values of all dials."""
        return tuple(each.value for each in self.dials)


def _checked_run(returned: object) -> Timeline:
    """What `run` returned. Raises ValueError where it is no Timeline with spans."""
    if not isinstance(returned, Timeline) or not returned.spans:
        what = "a Timeline without spans" if isinstance(returned, Timeline) else f"a {type(returned).__name__}"
        raise ValueError(f"run returned {what}; it must return the Timeline of a step, with its spans")
    return returned


class Picks(anywidget.AnyWidget):
    """An invisible control of an explorer, which makes each Rect of the picture that has a `pick` clickable.

    Rects can be chosen with the mouse or the keyboard. on_pick: called with the `pick` of the Rect that was chosen.
    """

    _esm = STATIC / "picks.js"
    _css = """.rr-explorer [data-pick] {pointer-events: all; cursor: pointer; outline: none}
.rr-explorer [data-pick]:focus-visible {outline: 3px solid var(--jp-brand-color1, #0072b2); outline-offset: 1px}"""

    def __init__(self, on_pick: Callable[[str], None]) -> None:
        super().__init__()
        self._on_pick = on_pick
        self.on_msg(self._receive)

    def _receive(self, widget: object, content: Any, buffers: object) -> None:
        """A message from picks.js: {"pick": "3"}."""
        if isinstance(content, dict) and isinstance(content.get("pick"), str):
            self._on_pick(content["pick"])
