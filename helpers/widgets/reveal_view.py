"""What a guess was about: one row with guess, prediction and measurement, and below it what shows why."""

from __future__ import annotations

import os
from html import escape
from typing import Any

import ipywidgets

from helpers.draw.picture import Bundle
from helpers.draw.png import png_language
from helpers.learner.guesses import (
    Declared,
    Kept,
    Question,
    agrees,
    declared,
    is_off,
    is_unattended,
    make_question,
    told,
)
from helpers.learner.guesses.room import room
from helpers.learner.hooks import FOLDED, WIDGET_VIEW
from helpers.learner.words import reading
from helpers.widgets import sitting_parts as parts
from helpers.widgets.bundle import bundle
from helpers.widgets.guess_reading import SAYS, say_off, say_value
from helpers.widgets.guess_view import style
from helpers.widgets.shown import live, saved

MEASURED = 0.02  # of a number: a clock and an allocator are never exact


def reveal(
    key: str, *shown: Any, predicted: Any = None, measured: Any = None, path: str | os.PathLike | None = None
) -> RevealView:
    """The row "your guess · predicted · measured", and below it `shown`; folded until the guess `key` is answered.

    shown: Scenes, pictures, explorers, matplotlib figures or texts. predicted, measured: in the question's unit;
    predicted is the declared answer, within 1e-6 of a number. Leave it out and that answer is shown: a cell that can be
    read between the guess and its result must not hold it. path: of the progress file. Where nobody is there
    (RANKS_UNATTENDED=1), ValueError for a prediction that is another one; without a prediction also for a measurement
    that is another one, by more than 2 % of a number.
    """
    view = RevealView(key, *shown, predicted=predicted, measured=measured, path=path)
    if view.wrong and is_unattended():
        raise ValueError(view.wrong)
    return view


class RevealView(ipywidgets.VBox):
    """What `reveal` returns. Without a front end: `.look()`, then `.text`."""

    def __init__(
        self,
        key: str,
        *shown: Any,
        predicted: Any = None,
        measured: Any = None,
        path: str | os.PathLike | None = None,
    ) -> None:
        self.key, self._shown = key, shown
        self._room = room(path)
        self.declared: Declared | None = _declared(key)
        self._is_computed = predicted is not None
        self.predicted = predicted if self._is_computed else self.declared and self.declared.answer
        self.measured = measured
        self._has_looked = False
        self._make_parts()
        self._room.listen(key, self)
        self.refresh()

    def _make_parts(self) -> None:
        self.said, self.row = ipywidgets.HTML(), ipywidgets.HTML()
        self.body = ipywidgets.VBox([])
        self.open_button = parts.button(self.look)
        self.open_button.description = SAYS("show")
        self._folded = parts.row(self.open_button)
        head = ipywidgets.VBox([style(), self.said, self._folded, self.row])
        head.add_class("rr-guess")  # not the body: an explorer in it keeps its own looks
        super().__init__([head, self.body])

    # -- what is known -------------------------------------------------------------------------------------------------
    @property
    def question(self) -> Question:
        """As it was asked in this kernel; of a guess that was not run here, what the files know of it."""
        kept = self._room.answer(self.key)
        asked = self._room.asked.get(self.key)
        return asked or make_question(self.key, unit=kept.unit if kept else "", key=self.key)

    @property
    def is_open(self) -> bool:
        """Whether the result is shown: it was guessed, or opened, or nobody is asked."""
        return self._has_looked or is_off() or is_unattended() or self._room.answer(self.key) is not None

    @property
    def changed(self) -> str:
        """A sentence where the prediction is not what was declared, "" otherwise."""
        if self.declared is None or self.predicted is None or agrees(self.predicted, self.declared.answer):
            return ""
        values = {"predicted": self._told(self.predicted), "declared": self._told(self.declared.answer)}
        return SAYS("changed", **values)

    @property
    def wrong(self) -> str:
        """A sentence for authors where something is not as it was declared, "" otherwise."""
        if self.changed:
            return f"{self.key}: predicted is {self.predicted!r}, and declared is {self.declared.answer!r}"
        known = self.declared is not None and self.measured is not None and not self._is_computed
        if known and not agrees(self.measured, self.declared.answer, within=MEASURED):
            return f"{self.key}: measured is {self.measured!r}, and declared is {self.declared.answer!r}"
        return ""

    # -- what can be done ----------------------------------------------------------------------------------------------
    def look(self) -> None:
        """Show the result without a guess."""
        self._has_looked = True
        if self._room.answer(self.key) is None:
            self._room.open(self.key)
        self.refresh()

    def refresh(self) -> None:
        """Show what is known now; a result that is folded has not been sent to the browser."""
        is_open = self.is_open
        first, how = SAYS("first"), SAYS("folded")
        self.said.value = "" if is_open else f'<p class="rr-first"><b>{first}</b> {how}</p>'
        for each, is_shown in ((self._folded, not is_open), (self.row, is_open), (self.body, is_open)):
            parts.display(each, is_shown)
        if is_open:
            self.row.value = self._row_html()
            self.body.children = self.body.children or [live(one) for one in self._shown]

    # -- what is shown -------------------------------------------------------------------------------------------------
    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        if not self.is_open:
            return f"{SAYS('first')} {SAYS('folded')}"
        cells = " · ".join(f"{name} {value}" for name, value in self._cells())
        return "\n".join([cells, *self._sentences])

    def _cells(self) -> list[tuple[str, str]]:
        """Name and value of each part of the row."""
        cells = [] if is_off() and self._kept is None else [(SAYS("yours"), self._guessed)]
        cells += [(SAYS("predicted"), self._told(self.predicted))] if self.predicted is not None else []
        return cells + ([(SAYS("measured"), self._told(self.measured))] if self.measured is not None else [])

    @property
    def _kept(self) -> Kept | None:
        return self._room.answer(self.key)

    @property
    def _guessed(self) -> str:
        return SAYS("not_guessed") if self._kept is None else say_value(self.question, self._kept.value)

    @property
    def _sentences(self) -> list[str]:
        """How far off, and what else there is to say."""
        kept = self._kept
        off = say_off(kept.form, kept.value, self.predicted) if kept else ""
        late = SAYS("late") if kept and kept.is_late else ""
        return [one for one in (off, late, self.changed) if one]

    def _told(self, value: Any, lang: str | None = None) -> str:
        is_words = isinstance(value, str | list | tuple) and self.question.form in ("choice", "order")
        return say_value(self.question, value, lang) if is_words else told(value, self.question.unit)

    def _row_html(self) -> str:
        cells = "".join(
            f"<div><span>{escape(name)}</span> <b>{escape(value)}</b></div>" for name, value in self._cells()
        )
        said = "".join(f"<p>{escape(one)}</p>" for one in self._sentences)
        return f'<div aria-live="polite"><div class="rr-row">{cells}</div>{said}</div>'

    def __repr__(self) -> str:
        parts = [f"[reveal] {self.key}"]
        parts += [f"predicted {self._told(self.predicted, 'en')}"] if self.predicted is not None else []
        parts += [f"measured {self._told(self.measured, 'en')}"] if self.measured is not None else []
        return " · ".join(parts)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None, **kwargs: Any) -> Bundle:
        """A saved notebook keeps the result and the picture, and never what somebody guessed."""
        shown = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        with reading(png_language()):
            kept = saved(self._shown, repr(self).partition(" · ")[2])
        text = "\n".join([repr(self), *(one for one in self._shown if isinstance(one, str))])
        return bundle(shown if self.is_open else self._folded_view(shown), text, kept)

    def _folded_view(self, shown: Any) -> dict[str, Any]:
        """The data that ipywidgets made, with what JupyterLab saves until it is guessed: helpers.learner.hooks."""
        data = dict((shown[0] if isinstance(shown, tuple) else shown) or {})
        return data | ({WIDGET_VIEW: {**data[WIDGET_VIEW], FOLDED: self.text}} if WIDGET_VIEW in data else {})


def _declared(key: str) -> Declared | None:
    try:
        return declared(key)
    except ValueError:  # the tests of the files say so
        return None
