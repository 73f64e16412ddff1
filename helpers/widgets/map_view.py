"""The map of the course in a notebook: where you are, what comes next, and which chapters to take in a week."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets

from helpers.draw import Scene, to_svg
from helpers.draw.course_map import MapRow, course_map_scene
from helpers.draw.png import png_language
from helpers.interview.bank_file import chapters as banks
from helpers.interview.bank_file import load_bank
from helpers.interview.reviews import Reviews
from helpers.learner.course import Chapter, chapters, week
from helpers.learner.progress import Progress
from helpers.learner.words import book, reading
from helpers.widgets.bundle import bundle, png_of
from helpers.widgets.progress_view import read_kindly
from helpers.widgets.progress_view import say as say_progress

say = book("course")
_STYLE = """<style>
.rr-map p {font-size: 15px; line-height: 1.4; margin: 6px 14px; color: var(--jp-content-font-color0, #111)}
.rr-map a {color: var(--jp-content-link-color, #0068b5)}
.rr-map svg {max-width: 100%; height: auto}
.rr-map [role=alert] {padding: 10px 14px; border-left: 4px solid var(--jp-warn-color1, #c60)}
</style>"""


class CourseMap(ipywidgets.VBox):
    """Chapters, stations, minutes, what is guessed and passed, which cards are due, and a button that reads it again.

    path: of the progress file, if not the one in the home. Works without a front end: `.refresh()`, then `.text`.
    """

    TEXT = "[widget] CourseMap: chapters, stations and minutes, what you have done, and what comes next"

    def __init__(self, *, path: str | os.PathLike | None = None) -> None:
        self._path = path
        self.html = ipywidgets.HTML()
        self.button = ipywidgets.Button(description=say_progress("again"), tooltip=say_progress("reads"))
        self.button.layout.margin = "0 14px 8px"
        self.button.on_click(self.refresh)
        super().__init__([self.html, self.button])
        self.add_class("rr-map")
        self.refresh()

    def refresh(self, button: object = None) -> None:
        """Read the notebooks and the progress file again."""
        found, self.problem = read_kindly(self._path)
        self.rows = _rows(chapters(), found)
        done = sorted((one.time, one.key) for one in found.entries if one.kind in ("guess", "check"))
        self._latest = done[-1][1].partition(".")[0] if done else ""
        said = f'<p aria-live="polite">{self._linked()}</p>'
        said += f'<p role="alert">{escape(self.problem)}</p>' * bool(self.problem)
        page = Chapter(name="sources", title="")
        said += f'<p>{escape(say("reference"))} <a href="{_address(page)}">{page.name}</a></p>' * bool(self.rows)
        self.html.value = _STYLE + said + (to_svg(self.scene) if self.rows else "")

    @property
    def scene(self) -> Scene:
        return course_map_scene(self.rows, week=week())

    @property
    def saved(self) -> Scene:
        """What a saved notebook keeps: the map, and nothing of what anybody did."""
        return course_map_scene([MapRow(chapter=row.chapter) for row in self.rows], week=week())

    @property
    def next(self) -> tuple[MapRow, str] | None:
        """The first row with something left to do, and the letter of its station, or "" for its lab.

        The chapter that was touched last comes first, then the others in the order of the week.
        """
        order = {number: place for place, number in enumerate(week())} | {self._latest: -1}
        for row in sorted(self.rows, key=lambda row: order.get(row.chapter.number, len(order))):
            for one in row.chapter.stations:
                if (one.guesses or one.exercises) and row.share(one) < 1:
                    return row, one.letter
            if set(row.chapter.tasks) - (row.done or set()):
                return row, ""
        return None

    @property
    def sentence(self) -> str:
        """What comes next."""
        if not self.rows:
            return say("nowhere")
        if self.next is None:
            return say("finished")
        row, letter = self.next
        if not letter:
            return say("next_lab", chapter=row.name)
        (minutes,) = (one.minutes for one in row.chapter.stations if one.letter == letter)
        return say("next_station", chapter=row.name, letter=letter, minutes=minutes)

    @property
    def text(self) -> str:
        """All that is shown, as plain text."""
        return "\n".join(filter(None, [self.sentence, self.problem, self.rows and self.scene.summary]))

    def _linked(self) -> str:
        """The sentence, in which the chapter is a link."""
        sentence = escape(self.sentence)
        if not self.rows or self.next is None:
            return sentence
        (row, letter), name = self.next, escape(self.next[0].name)
        folder = "" if letter else "labs/"
        return sentence.replace(name, f'<a href="{_address(row.chapter, folder)}">{name}</a>', 1)

    def __repr__(self) -> str:
        return self.TEXT

    def _repr_mimebundle_(self, include: object = None, exclude: object = None, **kwargs: Any) -> dict[str, Any]:
        shown = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        with reading(png_language()):
            saved = png_of(self.saved, colours=24) if self.rows else {}  # every chapter keeps one
        return bundle(shown, self.TEXT, saved)


def course_map(*, path: str | os.PathLike | None = None) -> CourseMap:
    """The map, as the last expression of a cell. path: of the progress file, if not the one in the home."""
    return CourseMap(path=path)


def _address(chapter: Chapter, folder: str = "") -> str:
    """Of a chapter, or of its lab in "labs/", from where the notebook runs: a lab lies one folder deeper."""
    name = f"{folder}{chapter.name}.ipynb"
    return f"../{name}" if not Path(name).exists() and Path("..", name).exists() else name


def _rows(found: Sequence[Chapter], progress: Progress) -> list[MapRow]:
    done = frozenset(entry.key for entry in progress.entries if entry.kind == "guess" or entry.passed)
    reviews, now = Reviews(progress.entries), datetime.now(UTC)
    return [MapRow(chapter=one, done=done, cards=_cards(one, reviews, now)) for one in found]


def _cards(chapter: Chapter, reviews: Reviews, now: datetime) -> str:
    """How many are due, or are there if none was answered yet. `interview` has the topics without a number."""
    names = [name for name in banks() if name == chapter.name or not (chapter.number or name[:1].isdigit())]
    due = [reviews.due(card.id) for name in names for card in load_bank(name)]
    if not due:
        return ""
    if not any(due):
        return say("new", count=len(due))
    return str(sum(when is not None and when <= now for when in due))
