"""Provides ProgressView, a table of passed tasks, and CourseMap, a map of all chapters with what comes next.

Both read the learner's progress file and have a button that reads it again. An entry of the file is an answer to a
question ("guess"), a check of a task ("check"), or a review of an interview card. A task has a key, the lab and a name:
"03.average". A chapter consists of stations, which have guesses and exercises, and of a lab with tasks. The week is the
order of chapters for a learner who has one week before an interview. `course_map()` is the last cell of every chapter;
`helpers.grading.progress_view()` ends every lab.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import ipywidgets

from helpers.draw import Scene, to_svg
from helpers.draw.course_map import MapRow, course_map_scene
from helpers.interview.bank_file import chapters as banks  # the names of the files of interview cards
from helpers.interview.bank_file import load_bank
from helpers.interview.reviews import Reviews
from helpers.learner import progress
from helpers.learner.course import Chapter, chapters, week
from helpers.learner.document import Element, html_of, table, table_row
from helpers.learner.progress import Progress, Standing
from helpers.learner.words import book
from helpers.widgets.view import SavedWidget, alert_html, button, style_sheet

words = book("progress")  # what a reader sees, by name, in the learner's language: learner/words/progress.yaml
map_words = book("course")  # what a reader sees, by name, in the learner's language: learner/words/course.yaml
COLUMNS = ("task", "state", "attempts", "last")  # of the table of ProgressView; a saved notebook has the first two


class _ProgressWidget(SavedWidget, ipywidgets.VBox):
    """HTML made from the learner's progress file, and a button that reads the file again.

    path: the progress file, if it is not the one in the home.
    """

    STYLE_SHEET = ""  # a file in static/, without .css

    def __init__(self, path: str | os.PathLike | None) -> None:
        self._path = path
        self.html = ipywidgets.HTML()
        self.button = button(self.refresh, words("again"), tooltip=words("reads"))
        self.button.layout.margin = "0 14px 8px"
        super().__init__([style_sheet(self.STYLE_SHEET), self.html, self.button])
        self.refresh()

    def refresh(self) -> None:
        """Read the progress file again."""
        raise NotImplementedError


class ProgressView(_ProgressWidget):
    """The learner's progress file, one table per lab.

    tasks: from a lab ("03") to the keys of its tasks ("03.average"), easy to hard; by default those in the file.
    Works without a front end: `.refresh()`, then `.text`. `helpers.grading.progress_view()` knows all tasks.
    """

    TEXT = "[widget] ProgressView: the tasks you have passed, and the next one"
    STYLE_SHEET = "progress"

    def __init__(
        self, tasks: Mapping[str, Sequence[str]] | None = None, *, path: str | os.PathLike | None = None
    ) -> None:
        self._tasks = tasks
        super().__init__(path)
        self.add_class("rr-progress")

    def refresh(self) -> None:
        """Read the progress file again."""
        found, self.problem = read_progress(self._path)
        checks = sorted((entry for entry in found.entries if entry.kind == "check"), key=lambda entry: entry.time)
        # The standing of a task, by its key: how often it was tried, and whether it is passed.
        self._standings = {key: one for lab in progress.standings(checks).values() for key, one in lab.items()}
        self._last = {entry.key: entry.time for entry in checks}
        self._latest = checks[-1].key if checks else ""
        tables = [self._rows(lab) for lab in self.tasks.items()]
        self.html.value = _html(self._sentences, tables, self.next_task)

    @property
    def tasks(self) -> Mapping[str, Sequence[str]]:
        """Lab to the keys of its tasks."""
        if self._tasks is not None:
            return self._tasks
        labs: dict[str, list[str]] = {}
        for key in self._standings:
            labs.setdefault(key.partition(".")[0], []).append(key)
        return labs

    @property
    def next_task(self) -> str | None:
        """The first task that is not passed, beginning in the lab of the last attempt; None when all are passed."""
        current = self._latest.partition(".")[0]
        labs = sorted(self.tasks, key=lambda lab: lab != current)  # the current lab first, the others as they are
        return next((key for lab in labs for key in self.tasks[lab] if not self._is_passed(key)), None)

    @property
    def sentence(self) -> str:
        """How many tasks are passed, and which one comes next."""
        keys = [key for lab in self.tasks.values() for key in lab]
        if not any(key in self._standings for key in keys):
            return words("begin", task=self.next_task) if keys else words("nothing")
        passed = sum(map(self._is_passed, keys))
        if self.next_task is None:
            return words("all", count=passed) if passed > 1 else words("one")  # "one": there is a single task
        return words("some", passed=passed, count=len(keys), task=self.next_task)

    @property
    def text(self) -> str:
        """What is shown, as plain text."""
        lines = list(self._sentences)
        for caption, rows in map(self._rows, self.tasks.items()):
            lines += [caption, *("  ".join(cell for cell in row if cell) for row in rows)]
        return "\n".join(lines)

    @property
    def _sentences(self) -> list[str]:
        """The sentence, and the problem with the progress file where there is one."""
        return list(filter(None, [self.sentence, self.problem]))

    def _is_passed(self, key: str) -> bool:
        """Whether the task with this key is passed."""
        return key in self._standings and self._standings[key].passed

    def _rows(self, lab: tuple[str, Sequence[str]]) -> tuple[str, list[tuple[str, ...]]]:
        """The caption of a lab, and a row of cells for each of its tasks."""
        number, keys = lab
        caption = words("lab", lab=number, passed=sum(map(self._is_passed, keys)), count=len(keys))
        return caption, [(key, *_cells(self._standings.get(key), self._last.get(key))) for key in keys]

    @property
    def saved_html(self) -> str:
        """Which tasks are passed; how often and when they were tried stays on the learner's machine."""
        tables = [(caption, [row[:2] for row in rows]) for caption, rows in map(self._rows, self.tasks.items())]
        return f'<div class="rr-progress">{_html([self.sentence], tables, self.next_task)}</div>'


def read_progress(path: str | os.PathLike | None) -> tuple[Progress, str]:
    """The progress file, and a message where it, or a part of it, cannot be read; "" otherwise."""
    try:
        found = progress.read(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder is known
        return Progress(), words("unreadable", reason=getattr(error, "strerror", None) or str(error))
    return found, words("skipped", count=found.num_skipped) if found.num_skipped else ""


def _cells(standing: Standing | None, last: str | None) -> tuple[str, str, str]:
    """State, number of attempts, and the last attempt in local time, to the minute."""
    if standing is None or last is None:
        return words("not_tried"), "", ""
    when = datetime.fromisoformat(last).astimezone().strftime("%Y-%m-%d %H:%M")
    # in_chapter: the task was passed in a notebook of the chapter, not in the lab.
    state = "passed_there" if standing.in_chapter else "passed" if standing.passed else "not_yet"
    return words(state), str(standing.attempts), when


def _html(sentences: Sequence[str], tables: Sequence[tuple[str, list[tuple[str, ...]]]], following: str | None) -> str:
    """The sentences above the tables, given as (caption, rows of cells). following: the key of the next task."""
    first, *problems = sentences
    above = f'<p aria-live="polite">{escape(first)}</p>' + "".join(map(alert_html, problems))
    return above + html_of(_table(caption, rows, following) for caption, rows in tables)


def _table(caption: str, rows: Sequence[Sequence[str]], following: str | None) -> Element:
    """A table. Rows with fewer cells than there are COLUMNS have the first ones.

    The next task is named as such, also for a screen reader (aria-current).
    """
    columns = [words(name) for name in COLUMNS[: len(rows[0])]] if rows else ()
    shown = [
        table_row([key + words("next"), *cells], has_head=True, aria_current="step")
        if key == following
        else table_row([key, *cells], has_head=True)
        for key, *cells in rows
    ]
    return table(columns, shown, caption=caption)


class CourseMap(_ProgressWidget):
    """All chapters with stations and minutes, what the learner has guessed and passed, and how many cards are due.

    path: the progress file, if it is not the one in the home. Works without a front end: `.refresh()`, then `.text`.
    """

    TEXT = "[widget] CourseMap: chapters, stations and minutes, what you have done, and what comes next"
    STYLE_SHEET = "course_map"
    PNG_OPTIONS = {"colours": 24}  # a small PNG, because every chapter saves one

    def __init__(self, *, path: str | os.PathLike | None = None) -> None:
        super().__init__(path)
        self.add_class("rr-map")

    def refresh(self) -> None:
        """Read the notebooks and the progress file again."""
        found, self.problem = read_progress(self._path)
        self.rows = _map_rows(chapters(), found)
        # What the learner guessed or checked, the latest last.
        done = sorted((one.time, one.key) for one in found.entries if one.kind in ("guess", "check"))
        # The chapter in which the learner last did something: the part of the key before the dot.
        self._latest = done[-1][1].partition(".")[0] if done else ""
        html = f'<p aria-live="polite">{self._sentence_with_link()}</p>{alert_html(self.problem)}'
        if self.rows:  # below the sentence a link to the page of all sources, and the map
            page = Chapter(name="sources", title="")  # not a chapter, but `_address` takes one
            html += f'<p>{escape(map_words("reference"))} <a href="{_address(page)}">{page.name}</a></p>'
            html += to_svg(self.scene)
        self.html.value = html

    @property
    def scene(self) -> Scene:
        """The map with what the learner did."""
        return course_map_scene(self.rows, week=week())

    @property
    def saved(self) -> Scene | None:
        """The map without what the learner did; None where no notebook was found."""
        rows = [MapRow(chapter=row.chapter) for row in self.rows]
        return course_map_scene(rows, week=week()) if rows else None

    @property
    def next(self) -> tuple[MapRow, str] | None:
        """The first chapter with something left to do, and the letter of the station, or "" for the lab.

        `week()` lists the numbers of the chapters to take in a week before an interview, in their order.
        The search begins with the chapter in which the learner last did something, then takes the order of the week.
        """
        # The place of each chapter in the search; that of the latest chapter comes first, and unknown ones come last.
        order = {number: index for index, number in enumerate(week())}
        if self._latest:  # without it the search would begin with the chapter that has no number, the interview
            order[self._latest] = -1
        for row in sorted(self.rows, key=lambda row: order.get(row.chapter.number, len(order))):
            for one in row.chapter.stations:
                if (one.guesses or one.exercises) and row.share(one) < 1:  # share: which part of it is done
                    return row, one.letter
            if set(row.chapter.tasks) - (row.done or set()):  # done: the keys of what was guessed or passed
                return row, ""
        return None

    @property
    def sentence(self) -> str:
        """Which station or lab comes next."""
        if not self.rows:
            return map_words("nowhere")
        if self.next is None:
            return map_words("finished")
        row, letter = self.next
        if not letter:
            return map_words("next_lab", chapter=row.name)
        (minutes,) = (one.minutes for one in row.chapter.stations if one.letter == letter)
        return map_words("next_station", chapter=row.name, letter=letter, minutes=minutes)

    @property
    def text(self) -> str:
        """What is shown, as plain text."""
        return "\n".join(filter(None, [self.sentence, self.problem, self.rows and self.scene.summary]))

    def _sentence_with_link(self) -> str:
        """The sentence, with the chapter's name as a link."""
        sentence = escape(self.sentence)
        if not self.rows or self.next is None:
            return sentence
        row, letter = self.next
        name, folder = escape(row.name), "" if letter else "labs/"
        return sentence.replace(name, f'<a href="{_address(row.chapter, folder)}">{name}</a>', 1)


def course_map(*, path: str | os.PathLike | None = None) -> CourseMap:
    """The map, as the last expression of a cell. path: the progress file, if it is not the one in the home."""
    return CourseMap(path=path)


def _address(chapter: Chapter, folder: str = "") -> str:
    """The address of a chapter, or of its lab with folder "labs/", relative to the notebook that shows the map.

    A notebook of a lab lies one folder deeper than those of chapters, so its addresses begin with "../".
    """
    name = f"{folder}{chapter.name}.ipynb"
    return f"../{name}" if not Path(name).exists() and Path("..", name).exists() else name


def _map_rows(found: Sequence[Chapter], progress: Progress) -> list[MapRow]:
    """A row of the map for each chapter: what was guessed or passed, and how many cards are due."""
    done = frozenset(entry.key for entry in progress.entries if entry.kind == "guess" or entry.passed)
    reviews, now = Reviews(progress.entries), datetime.now(UTC)
    return [MapRow(chapter=one, done=done, cards=_due_cards(one, reviews, now)) for one in found]


def _due_cards(chapter: Chapter, reviews: Reviews, now: datetime) -> str:
    """How many cards of a chapter are due; where none was ever answered, how many there are.

    Banks whose name has no chapter number belong to the chapter `interview`.
    """
    # A bank is a file of interview cards, which has the name of its chapter ("03_ddp") or of a subject ("numerics").
    names = [name for name in banks() if name == chapter.name or not (chapter.number or name[:1].isdigit())]
    due = [reviews.due(card.id) for name in names for card in load_bank(name)]
    if not due:
        return ""
    if not any(due):
        return map_words("new", count=len(due))
    return str(sum(when is not None and when <= now for when in due))  # None: never answered
