"""A button that runs what an explorer predicts, and keeps what each setting of its dials gave."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import ipywidgets

from helpers.draw.palette import words
from helpers.records import Timeline

_NOTICE = "margin:2px 14px;padding:6px 14px;border-left:4px solid var(--jp-warn-color1,#c60);white-space:pre-wrap"


class Runs:
    """Mixed into an Explorer, before it. `_runs(run, tooltip)` makes the controls; `_arguments` is what `run` gets.

    run: a function that returns the Timeline of a step that was run, or None for an explorer without the button.
    What goes wrong in it becomes a notice below the button, never an error.
    """

    def _runs(self, run: Callable[..., Timeline] | None, tooltip: str) -> list[ipywidgets.Widget]:
        self._run = run
        self._played: dict[tuple, Timeline] = {}  # by setting
        self.button = ipywidgets.Button(description=words("run.run"), tooltip=tooltip)
        self.button.layout.margin = "2px 14px"  # where the sentence below it begins
        self.button.on_click(lambda button: self.run_now())
        self.notice, self.failure = ipywidgets.HTML(), ""
        return [self.button, self.notice] if run else []

    @property
    def _arguments(self) -> tuple[tuple, dict]:
        raise NotImplementedError

    @property
    def emulated(self) -> Timeline | None:
        """What `run` gave for the dials as they stand; None where nobody pressed the button yet."""
        return self._played.get(self._setting)

    def run_now(self):
        """What the button does: `run` for the dials as they stand. Returns the explorer, so that a cell can show it.

        ValueError when there is no `run`.
        """
        if self._run is None:
            name = type(self).__name__
            raise ValueError(f"this {name} has nothing to run; give it run=, such as {self.RUN}")
        self._tell("")
        self.button.disabled, self.button.description = True, words("run.running")
        try:
            args, kwargs = self._arguments
            self._played[self._setting] = _checked(self._run(*args, **kwargs))
        except Exception as error:  # of any kind: what was given as `run` is not ours
            self._played.pop(self._setting, None)
            self._tell(str(error) or type(error).__name__)
        finally:
            self.button.disabled, self.button.description = False, words("run.run")
        super()._draw()
        return self

    @property
    def text(self) -> str:
        """The sentence and the table as plain text; below them what went wrong in the last run."""
        return "\n".join(filter(None, [super().text, self.failure]))

    def _tell(self, failure: str) -> None:
        self.failure = failure
        self.notice.value = f'<div role="alert" style="{_NOTICE}">{escape(failure)}</div>' if failure else ""

    def _draw(self, change: object = None) -> None:
        self._tell("")  # it spoke of the setting before
        super()._draw(change)

    @property
    def _setting(self) -> tuple:
        return tuple(each.value for each in self.dials)


def _checked(ran: object) -> Timeline:
    if not isinstance(ran, Timeline) or not ran.spans:
        what = "a Timeline without spans" if isinstance(ran, Timeline) else f"a {type(ran).__name__}"
        raise ValueError(f"run returned {what}; it must return the Timeline of a step, with its spans")
    return ran
