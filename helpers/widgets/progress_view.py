"""What you have done: labs and tasks, passed, not yet, not tried; how often, when last, and what comes next."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

import ipywidgets

from helpers.learner import progress
from helpers.learner.progress import Progress, Standing
from helpers.learner.words import book
from helpers.widgets.bundle import bundle

say = book("progress")
COLUMNS = ("task", "state", "attempts", "last")
_STYLE = """<style>
.rr-progress table {border-collapse: collapse; margin: 4px 14px 10px; font-size: 13px; min-width: 420px}
.rr-progress caption {text-align: left; font-weight: 600; padding: 2px 0}
.rr-progress th, .rr-progress td {padding: 3px 14px 3px 0; text-align: left; font-weight: normal; line-height: 1.4;
 border-bottom: 1px solid var(--jp-border-color2, #bbb); font-variant-numeric: tabular-nums}
.rr-progress p, .rr-progress caption, .rr-progress th, .rr-progress td {color: var(--jp-content-font-color0, #111)}
.rr-progress thead th {color: var(--jp-content-font-color1, #444)}
.rr-progress p {font-size: 15px; line-height: 1.4; margin: 6px 14px}
.rr-progress [aria-current] th, .rr-progress [aria-current] td {font-weight: 600}
.rr-progress [role=alert] {padding: 10px 14px; border-left: 4px solid var(--jp-warn-color1, #c60)}
</style>"""


class ProgressView(ipywidgets.VBox):
    """The learner's progress file as a table a lab, with a button that reads it again.

    tasks: lab ("03") to the keys of its tasks ("03.average"), easy to hard; None: those that the file knows.
    path: of the progress file, if not the one in the home. Works without a front end: `.refresh()`, then `.text`.
    `helpers.grading.progress_view()` is this with all tasks there are.
    """

    TEXT = "[widget] ProgressView: the tasks you have passed, and the next one"  # the same whatever was done

    def __init__(
        self, tasks: Mapping[str, Sequence[str]] | None = None, *, path: str | os.PathLike | None = None
    ) -> None:
        self._tasks, self._path = tasks, path
        self.html = ipywidgets.HTML()
        self.button = ipywidgets.Button(description=say("again"), tooltip=say("reads"))
        self.button.layout.margin = "0 14px 8px"
        self.button.on_click(self.refresh)
        super().__init__([self.html, self.button])
        self.add_class("rr-progress")
        self.refresh()

    def refresh(self, button: object = None) -> None:
        """Read the file again."""
        found, self.problem = read_kindly(self._path)
        checks = sorted((entry for entry in found.entries if entry.kind == "check"), key=lambda entry: entry.time)
        self._done = {key: one for lab in progress.standings(checks).values() for key, one in lab.items()}
        self._last = {entry.key: entry.time for entry in checks}
        self._latest = checks[-1].key if checks else ""
        self.html.value = _STYLE + _html(
            self._sentences, [self._rows(lab) for lab in self.tasks.items()], self.next_task
        )

    @property
    def tasks(self) -> Mapping[str, Sequence[str]]:
        """Lab to the keys of its tasks."""
        if self._tasks is not None:
            return self._tasks
        labs: dict[str, list[str]] = {}
        for key in self._done:
            labs.setdefault(key.partition(".")[0], []).append(key)
        return labs

    @property
    def next_task(self) -> str | None:
        """The first task that is not passed, in the lab of the last attempt before all others; None when all are."""
        current = self._latest.partition(".")[0]
        labs = sorted(self.tasks, key=lambda lab: lab != current)
        return next((key for lab in labs for key in self.tasks[lab] if not self._passed(key)), None)

    @property
    def sentence(self) -> str:
        """How many are passed, and the next one."""
        keys = [key for lab in self.tasks.values() for key in lab]
        if not any(key in self._done for key in keys):
            return say("begin", task=self.next_task) if keys else say("nothing")
        passed = sum(map(self._passed, keys))
        if self.next_task is None:
            return say("all", count=passed) if passed > 1 else say("one")
        return say("some", passed=passed, count=len(keys), task=self.next_task)

    @property
    def text(self) -> str:
        """All that is shown, as plain text."""
        lines = list(self._sentences)
        for caption, rows in map(self._rows, self.tasks.items()):
            lines += [caption, *("  ".join(cell for cell in row if cell) for row in rows)]
        return "\n".join(lines)

    @property
    def _sentences(self) -> list[str]:
        return [self.sentence, *([self.problem] if self.problem else [])]

    def _passed(self, key: str) -> bool:
        return key in self._done and self._done[key].passed

    def _rows(self, lab: tuple[str, Sequence[str]]) -> tuple[str, list[tuple[str, ...]]]:
        """The caption of a lab, and a row of cells for each of its tasks."""
        number, keys = lab
        caption = say("lab", lab=number, passed=sum(map(self._passed, keys)), count=len(keys))
        return caption, [(key, *_cells(self._done.get(key), self._last.get(key))) for key in keys]

    def __repr__(self) -> str:
        return self.TEXT

    def _repr_mimebundle_(self, include: object = None, exclude: object = None, **kwargs: Any) -> dict[str, Any]:
        """A saved notebook keeps what is passed; how often and when stay on the learner's machine."""
        shown = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        tables = [(caption, [row[:2] for row in rows]) for caption, rows in map(self._rows, self.tasks.items())]
        saved = f'<div class="rr-progress">{_html([self.sentence], tables, self.next_task)}</div>'
        return bundle(shown, self.TEXT, {"text/html": saved})


def read_kindly(path: str | os.PathLike | None) -> tuple[Progress, str]:
    """What the progress file holds, and a sentence where it, or a part of it, cannot be read."""
    try:
        found = progress.read(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        return Progress(), say("unreadable", reason=getattr(error, "strerror", None) or str(error))
    return found, say("skipped", count=found.num_skipped) if found.num_skipped else ""


def _cells(standing: Standing | None, last: str | None) -> tuple[str, str, str]:
    """State, attempts, last try in the time of this machine, to the minute."""
    if standing is None or last is None:
        return say("not_tried"), "", ""
    when = datetime.fromisoformat(last).astimezone().strftime("%Y-%m-%d %H:%M")
    state = "passed_there" if standing.in_chapter else "passed" if standing.passed else "not_yet"
    return say(state), str(standing.attempts), when


def _html(sentences: Sequence[str], tables: Sequence[tuple[str, list[tuple[str, ...]]]], following: str | None) -> str:
    first, *problems = (escape(sentence) for sentence in sentences)
    said = f'<p aria-live="polite">{first}</p>' + "".join(f'<p role="alert">{problem}</p>' for problem in problems)
    return said + "".join(_table(caption, rows, following) for caption, rows in tables)


def _table(caption: str, rows: Sequence[Sequence[str]], following: str | None) -> str:
    columns = COLUMNS[: len(rows[0])] if rows else ()
    head = "".join(f'<th scope="col">{say(name)}</th>' for name in columns)
    body = "".join(_row(row, is_next=row[0] == following) for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(row: Sequence[str], *, is_next: bool) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
    key = escape(row[0]) + (say("next") if is_next else "")
    mark = ' aria-current="step"' if is_next else ""
    return f'<tr{mark}><th scope="row">{key}</th>{cells}</tr>'
