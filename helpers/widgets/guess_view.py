"""A question before its result: a number, a range, a choice or an order. The first answer is kept."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from typing import Any

import ipywidgets

from helpers.interview.render import inline
from helpers.learner.guesses import Question, is_off, is_unattended, make_question
from helpers.learner.guesses.room import room
from helpers.widgets import sitting_parts as parts
from helpers.widgets.bundle import bundle
from helpers.widgets.guess_controls import Controls
from helpers.widgets.guess_reading import SAYS, read_guess, say_value

STYLE = """<style>
.rr-guess {max-width: 860px; padding: 2px 0 4px; color: var(--jp-content-font-color0, currentColor)}
.rr-guess .widget-html-content {line-height: 1.5; font-size: 15px; white-space: normal}
.rr-guess p {margin: 4px 14px; color: inherit}
.rr-guess .rr-question {font-size: 17px; font-weight: 600}
.rr-guess .rr-first {color: var(--jp-content-font-color1, currentColor)}
.rr-guess .rr-said {padding: 4px 14px; border-left: 4px solid var(--jp-brand-color1, #0072b2)}
.rr-guess [role=alert] {padding: 6px 14px; border-left: 4px solid var(--jp-warn-color1, #c60)}
.rr-guess input[type=text] {font-size: 15px}
.rr-guess .jupyter-button {font-size: 14px; height: auto; min-height: 32px; padding: 2px 14px; white-space: normal;
 line-height: 1.4; text-align: left}
.rr-guess button:focus-visible, .rr-guess input:focus-visible {
 outline: 2px solid var(--jp-brand-color1, #0072b2); outline-offset: 1px}
.rr-guess .widget-radio-box label {font-size: 15px; line-height: 1.5; height: auto; white-space: normal}
.rr-guess .rr-row {display: flex; flex-wrap: wrap; gap: 4px 36px; margin: 6px 14px; font-variant-numeric: tabular-nums}
.rr-guess .rr-row span {display: block; font-size: 13px; color: var(--jp-content-font-color1, currentColor)}
.rr-guess .rr-row b {display: block; font-size: 19px; line-height: 1.3; font-weight: 600}
.rr-guess img, .rr-guess svg {max-width: 100%; height: auto}
.rr-guess pre {margin: 6px 14px; color: inherit; overflow-x: auto}
</style>"""


def style() -> ipywidgets.HTML:
    """The rules above; shown first in a VBox with the class `rr-guess`."""
    widget = ipywidgets.HTML(STYLE)
    widget.layout.display = "none"
    return widget


def guess(
    text: str,
    *,
    unit: str = "",
    kind: str = "",
    key: str = "",
    choices: Sequence[str] | None = None,
    order: Sequence[str] | None = None,
    between: bool = False,
    default: Any = None,
    path: str | os.PathLike | None = None,
) -> GuessView:
    """Ask, once. `guess("bytes per rank", unit="B")` is enough. A declared answer stands in helpers/learner/guesses.

    unit: of the number asked for. kind: "memory", "traffic", "time" or "count". key: "08.stage2", else made from the
    text. choices: one of them is taken. order: these, put in order; they are shown shuffled. between: two numbers.
    default: what is taken where nobody is there (RANKS_UNATTENDED=1), None for "no idea". path: of the progress file.

    Never raises for a learner. Where nobody is there, ValueError for a question that is written wrongly.
    """
    question = make_question(text, unit=unit, kind=kind, key=key, choices=choices, order=order, between=between)
    if question.wrong and is_unattended():
        raise ValueError(question.wrong)
    return GuessView(question, default=default, path=path)


class GuessView(ipywidgets.VBox):
    """What `guess` returns. Without a front end: `.answer("7 B")`, `.no_idea()`, then `.value` and `.text`."""

    def __init__(self, question: Question, *, default: Any = None, path: str | os.PathLike | None = None) -> None:
        self.question, self._default = question, default
        self.problem, self.second = "", ""
        self._room = room(path)
        self._room.asked[question.key] = question
        self._room.listen(question.key, self)
        self.asked, self.said = ipywidgets.HTML(), ipywidgets.HTML()
        self.controls = Controls(question, on_answer=self.answer, on_none=self.no_idea)
        super().__init__([style(), self.asked, self.controls, self.said])
        self.add_class("rr-guess")
        self.refresh()

    @property
    def value(self) -> Any:
        """The first answer: a number in the question's unit, two, a choice, a list; None without one."""
        kept = self._room.answer(self.question.key)
        if kept is None:
            return self._default if is_unattended() else None
        return kept.value

    @property
    def is_open(self) -> bool:
        """Whether it still waits for an answer."""
        return not is_off() and not is_unattended() and self._room.answer(self.question.key) is None

    def answer(self, given: Any) -> None:
        """Keep an answer. What cannot be read gets a sentence; where one is kept, that one stays."""
        try:
            value = read_guess(self.question, given)
        except (ValueError, TypeError) as error:
            self.problem = str(error)
            return self.refresh()
        return self._take(value)

    def no_idea(self) -> None:
        """An answer as good as another, and kept as one."""
        self._take(None)

    def _take(self, value: Any) -> None:
        before = self._room.answer(self.question.key)
        self.second = "" if before is None else SAYS("second", value=say_value(self.question, value))
        _, problem, reason = self._room.take(self.question, value)
        self.problem = " ".join(filter(None, [problem, SAYS("no_box", reason=reason) if reason else ""]))
        self.refresh()

    def refresh(self) -> None:
        """Show what is known now."""
        text = inline(self.question.text.in_())
        self.asked.value = f'<p class="rr-question">{text}</p>'
        parts.display(self.controls, self.is_open)
        tags = {"rr-said": self._sentence, "rr-second": self.second}
        shown = "".join(
            f'<p class="{name}" aria-live="polite">{escape(said)}</p>' for name, said in tags.items() if said
        )
        alerts = "".join(parts.alert_html(problem) for problem in (self.problem, self._wrong))
        self.said.value = shown + alerts

    @property
    def text(self) -> str:
        """What is shown, as plain text."""
        options = [one.in_() for one in self.question.options]
        lines = [self.question.text.in_(), *options, self._sentence, self.second, self.problem, self._wrong]
        return "\n".join(line for line in lines if line)

    @property
    def _wrong(self) -> str:
        return SAYS("ask_author", wrong=self.question.wrong) if self.question.wrong else ""

    @property
    def _sentence(self) -> str:
        kept = self._room.answer(self.question.key)
        if kept is not None:
            said = say_value(self.question, kept.value) if kept.value is not None else ""
            return SAYS("kept", value=said) if said else SAYS("kept_none")
        return SAYS("is_off") if is_off() else ""

    def __repr__(self) -> str:
        return f"[guess] {self.question.key}: {self.question.text.en}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None, **kwargs: Any) -> dict[str, Any]:
        """A saved notebook keeps the question: whether and what somebody answered stays on the learner's machine."""
        shown = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        return bundle(shown, repr(self), {})
