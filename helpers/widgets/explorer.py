"""Provides the base classes of every explorer: Explorer, SteppedExplorer and RunButton.

An Explorer has controls, a sentence, a picture, its numbers as a table, and a PNG for saved notebooks. It is plain
Python, so it also runs in a browser's Python. Two front ends show it: in a notebook the ipywidgets of
`explorer_view.py`, which are made when it is first shown, and on a web page whatever reads `as_json`.

SteppedExplorer adds steps, and RunButton a button that runs on real ranks what the explorer predicts. The explorers in
the `*_explorer.py` files inherit from these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from helpers.draw import Label, Rect, Scene, to_svg
from helpers.draw.palette import words  # the texts that are shown, by name: learner/words/draw.yaml
from helpers.draw.scene import WIDE, WIDTH, text_width
from helpers.learner.words import language, use_language
from helpers.learner.words.wrapping import aligned
from helpers.records import Timeline
from helpers.widgets.controls import Button, Control, Group, Notice, Picks, Steps

if TYPE_CHECKING:
    import ipywidgets

Rows = Sequence[Mapping[str, str]]  # of a table: the text of each cell by the name of its column

_FONT = 12  # pixels of the letters of the sentence in a saved picture
# Lines may be wrapped between two matches: words, or single wide (Chinese) characters with the punctuation after them.
# WIDE is the first wide character, and \uffef the last one of Unicode's block of full-width forms.
_UNBREAKABLE = re.compile(rf"\s*(?:[{WIDE}-\uffef]|[^\s{WIDE}-\uffef]+)[，。；：、）]*")


class ShownByWidget:
    """Mixed into a class of plain Python that a widget shows in a notebook.

    TEXT: the text output, which tests compare, so it is the same whatever the learner did.
    """

    TEXT = ""
    _widget: ipywidgets.Widget | None = None

    @property
    def widget(self) -> Any:
        """The ipywidget that shows this object. It is made when it is first asked for."""
        if self._widget is None:
            self._widget = self._make_widget()
        return self._widget

    def _make_widget(self) -> ipywidgets.Widget:
        """The widget; only here, ipywidgets is imported."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.TEXT

    def _repr_mimebundle_(self, include: object = None, exclude: object = None, **kwargs: Any) -> Any:
        """What Jupyter shows and saves."""
        return self.widget._repr_mimebundle_(include=include, exclude=exclude, **kwargs)


class Explorer(ShownByWidget):
    """Base of an explorer, whose dials change a picture. A subclass makes its controls, then calls this constructor.

    It defines `scene` (the picture), `sentence`, `TEXT` (see ShownByWidget) and, if it likes, `rows`, the numbers of
    the picture as a table. Where one of them raises ValueError, its message is shown and the last picture turns pale,
    until a dial has a valid value again. Set `.value` of a dial, then read `.text`, `.sentence`, `.rows` or `.scene`.

    dials: the controls above the picture, in a grid. controls: those between the grid and the picture. arrangement:
    rows of controls and Groups, where these stand instead of the grid.
    """

    scene: Scene
    sentence: str
    rows: Rows = ()
    footer = ""  # HTML below the table
    STYLE_SHEET = ""  # the name of a file in static/, without .css, that is for this explorer alone
    STRETCHES_DIALS = False  # whether the dials fill the width, so that two stand beside each other in a narrow window

    def __init__(
        self,
        dials: Sequence[Control],
        *,
        controls: Sequence[Control] = (),
        arrangement: Sequence[Sequence[Control | Group]] = (),
    ) -> None:
        self.dials, self.controls, self.arrangement = tuple(dials), tuple(controls), arrangement
        self.shown_sentence, self.is_problem, self.shown_rows = "", False, ()  # what was drawn last
        self.shown_scene: Scene | None = None  # None for an invalid setting
        self.svg = ""  # the last picture, which stays where a setting is invalid
        for control in (*self.dials, *self.controls):
            control.observe(self._draw)
        self._draw()

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

    def _draw(self, turned: Control | None = None) -> None:
        """Compute sentence, picture and table for the dials' values, and show them. turned: what the learner changed.

        A subclass in which one control changes another one does that first.
        """
        with use_language(language()):  # looks the language up once instead of for each of a thousand texts
            self.shown_sentence, self.shown_scene, self.shown_rows = self._computed()
        self.is_problem = self.shown_scene is None
        if self.shown_scene is not None:
            self.svg = to_svg(self.shown_scene)
        self._show()

    def _show(self) -> None:
        """Let the widget show what changed, where there is one."""
        if self._widget is not None:
            self._widget.refresh()

    def _make_widget(self) -> ipywidgets.Widget:
        from helpers.widgets.explorer_view import ExplorerView

        return ExplorerView(self)

    # -- for a web page ------------------------------------------------------------------------------------------------
    def as_json(self) -> dict[str, Any]:
        """All that a page shows, as plain JSON data.

        "controls": for each, its "name" for `set`, its "group" (a heading or "") and what Control.as_json gives.
        "sentence", and whether it "is_problem", the message of an invalid setting; then "svg" is the last picture.
        "rows": the heads and the rows of the table, or []. "clickable": the parts of the picture for `press`.
        """
        heads = [[*self.shown_rows[0]]] if self.shown_rows else []
        return {
            "controls": [
                {"name": name, "group": group} | control.as_json() for name, (group, control) in self._named.items()
            ],
            "sentence": self.shown_sentence,
            "is_problem": self.is_problem,
            "svg": self.svg,
            "rows": heads + [[*row.values()] for row in self.shown_rows],
            "clickable": self._clickable,
        }

    def set(self, name: str, value: Any) -> None:
        """Set the control of this name to a value as `as_json` gives it. A button is pressed, whatever the value.

        Raises ValueError for an unknown name, and for a value that the control cannot have.
        """
        if name not in self._named:
            raise ValueError(f"{type(self).__name__} has no control {name!r}; it has {', '.join(self._named)}")
        self._named[name][1].set_json(value)

    def press(self, part: str) -> None:
        """Choose a part of the picture, one of those in "clickable". Raises ValueError for another one."""
        if part not in self._clickable:
            known = ", ".join(self._clickable) or "none"
            raise ValueError(f"the picture has no part {part!r} that can be clicked; it has {known}")
        for control in self.controls:
            if isinstance(control, Picks):
                control.act(part)

    @property
    def _clickable(self) -> list[str]:
        """The parts of the picture that can be clicked; a pale picture has none."""
        if self.shown_scene is None or not any(isinstance(control, Picks) for control in self.controls):
            return []
        return [item.pick for item in self.shown_scene.items if isinstance(item, Rect) and item.pick]

    @property
    def _named(self) -> dict[str, tuple[str, Control]]:
        """The heading and the control, by the name of the explorer's attribute, for each control that a page shows."""
        attributes = {id(value): name for name, value in vars(self).items() if isinstance(value, Control)}
        every = [(group, control) for group, control in self._placed() if control.kind]
        return {
            attributes.get(id(control), f"control_{number}"): (group, control)
            for number, (group, control) in enumerate(every)
        }

    def _placed(self) -> Iterator[tuple[str, Control]]:
        """Each control with the heading above it, in the order in which they stand."""
        for row in self.arrangement or [self.dials]:
            for each in row:
                if isinstance(each, Group):
                    yield from ((each.heading, control) for control in each.controls)
                else:
                    yield "", each
        yield from (("", control) for control in self.controls)


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


class SteppedExplorer(Explorer):
    """An Explorer whose subclass also defines `num_steps`. It draws the step `step.value`, counted from 1."""

    num_steps: int

    def __init__(self, dials: Sequence[Control], *, controls: Sequence[Control] = ()) -> None:
        self.step = Steps(words("step.step"), words("step.which"))
        super().__init__(dials, controls=(*controls, self.step))

    def _draw(self, turned: Control | None = None) -> None:
        """First let the steps end at the last one."""
        with suppress(ValueError):  # an invalid setting has no steps; Explorer shows the message
            self.step.fit(self.num_steps)
        super()._draw(turned)


class RunButton:
    """Mixed into an Explorer, before Explorer: a button that runs on real ranks what the explorer predicts.

    The subclass passes `_run_controls(run, tooltip)` to Explorer as controls, and its `_run_arguments` are what `run`
    is called with. run: a function that returns the Timeline of the step that it ran, or None for an explorer without
    the button. An exception in it becomes a message below the button. RUN_EXAMPLE: a function to name in an error.
    """

    RUN_EXAMPLE = ""

    def _run_controls(self, run: Callable[..., Timeline] | None, tooltip: str) -> list[Control]:
        """The button and the place for its message, as controls for Explorer; none without `run`."""
        self._run = run
        self._timelines: dict[tuple, Timeline] = {}  # setting of the dials -> what `run` returned for it
        self.button, self.notice = Button(self.run_now, words("run.run"), tooltip=tooltip), Notice()
        return [self.button, self.notice] if run else []

    @property
    def failure(self) -> str:
        """What went wrong in the last run; "" for nothing."""
        return self.notice.text

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
        self.notice.text = ""
        self.button.disabled, self.button.description = True, words("run.running")
        self._show()
        try:
            args, kwargs = self._run_arguments
            self._timelines[self._setting] = _checked_run(self._run(*args, **kwargs))
        except (Exception, KeyboardInterrupt) as error:  # of any kind: `run` may be any function
            self._timelines.pop(self._setting, None)
            is_interrupt = isinstance(error, KeyboardInterrupt)
            self.notice.text = words("run.interrupted") if is_interrupt else str(error) or type(error).__name__
        finally:
            self.button.disabled, self.button.description = False, words("run.run")
        super()._draw()  # and not self._draw(), which would remove the message
        return self

    @property
    def text(self) -> str:
        """The sentence and the table as plain text; below them what went wrong in the last run."""
        return "\n".join(filter(None, [super().text, self.failure]))

    def _draw(self, turned: Control | None = None) -> None:
        """First remove the message of the last run, which was about the previous setting."""
        self.notice.text = ""
        super()._draw(turned)

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
