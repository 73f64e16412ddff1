"""Provides DialogueView, a worked interview that a learner follows turn by turn.

A dialogue has turns of an interviewer and a candidate, and a scorecard at the end. Before each turn of the candidate,
the learner says or writes an answer of their own, which then stands above what the candidate says. `_text(name)` is a
text in the language of the dial.
"""

from __future__ import annotations

from pathlib import Path

import ipywidgets

from helpers.interview.dialogues import (
    DialogueStep,
    dialogue,
    dialogue_html,
    scorecard_html,
    scorecard_text,
    turn_html,
    turn_text,
    words,
    write_page,
)
from helpers.widgets.interview_view import InterviewView, draw_buttons, language_dial, set_dial_widths
from helpers.widgets.view import Page, button, display, row


class DialogueView(InterviewView):
    """A worked interview. Without a front end: `.next()`, `.show_all()`, then `.text`.

    name: such as "pretrain-70b". language: "en" or "zh", by default the learner's. Raises ValueError with all names for
    an unknown one.
    """

    def __init__(self, name: str = "pretrain-70b", *, language: str | None = None) -> None:
        self.dialogue = dialogue(name, language)
        self.TEXT = f"[widget] DialogueView: a worked interview, {self.dialogue.title.en}"
        self.language = language_dial(language)
        self.steps: list[DialogueStep] = list(self.dialogue.steps())
        self.shown = 1  # how many steps are shown
        self._own: dict[int, str] = {}  # the number of a step -> what the learner wrote before it was shown
        self.heading, self.transcript, self.invitation = (ipywidgets.HTML() for _ in range(3))
        self.scorecard = Page()  # its links open outside the notebook
        self.scorecard.layout.margin = "0 14px"
        self.own = ipywidgets.Textarea(layout=ipywidgets.Layout(width="calc(100% - 28px)", margin="2px 14px"), rows=3)
        self.next_button = button(self.next, style="primary")
        self.all_button, self.again_button = button(self.show_all), button(self.restart)
        buttons = row(self.next_button, self.all_button, self.again_button)
        parts = [row(self.language), self.heading, self.transcript, self.scorecard, self.invitation, self.own, buttons]
        super().__init__(parts)
        set_dial_widths((self.language,))
        self.language.observe(lambda change: self._draw(), names="value")
        self._draw()

    # -- actions -------------------------------------------------------------------------------------------------------
    def next(self) -> None:
        """Show the next step, and above it what the learner has written; after the last step nothing happens."""
        self._show(min(self.shown + 1, len(self.steps)))

    def show_all(self) -> None:
        """Show all that is left at once."""
        self._show(len(self.steps))

    def _show(self, count: int) -> None:
        """Show so many steps, and above the first new one what the learner has written."""
        if count > self.shown:
            if self.own.value.strip():
                self._own[self.steps[self.shown].number] = self.own.value.strip()
            self.shown, self.own.value = count, ""
            self._draw()

    def restart(self) -> None:
        """Begin again with the question, without what the learner wrote."""
        self.shown, self._own, self.own.value = 1, {}, ""
        self._draw()

    def page(self, path: str | Path) -> Path:
        """Write the whole dialogue as a page to print, in the language of the dial. Returns its path."""
        return write_page(self.dialogue, path, self.language.value)

    # -- display -------------------------------------------------------------------------------------------------------
    @property
    def asks(self) -> bool:
        """Whether the learner should answer now, because the candidate speaks next."""
        return self.shown < len(self.steps) and self.steps[self.shown].asks_first

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        lang, turns = self.language.value, [step.turn for step in self.steps[: self.shown]]
        parts = [turn_text(turn, lang) if turn else scorecard_text(self.dialogue, lang) for turn in turns]
        return "\n".join([self.dialogue.title.in_(lang), *parts])

    def _text(self, name: str, **values: object) -> str:
        """A text of learner/words/dialogue.yaml in the language of the dial."""
        return words(name, self.language.value, **values)

    def _draw(self) -> None:
        """Show the steps so far, the invitation to answer, and the buttons that can be pressed."""
        lang, one, is_over = self.language.value, self.dialogue, self.shown == len(self.steps)
        place = self._text("place", number=self.shown, total=len(self.steps))
        intro = self._text("intro", minutes=one.minutes)
        self.heading.value = f'<p class="rr-question">{one.title.in_(lang)}</p><p class="rr-meta">{intro} {place}</p>'
        steps = [step for step in self.steps[: self.shown] if step.turn]
        shown = "".join(turn_html(step.turn, lang, own=self._own.get(step.number, "")) for step in steps)
        self.transcript.value = f'<div lang="{lang}" aria-live="polite" style="margin:0 14px">{shown}</div>'
        self.scorecard.show(scorecard_html(one, lang) if is_over else "")
        self.invitation.value = f'<p class="rr-meta">{self._text("your_turn")}</p>'
        self.own.placeholder = self._text("own")
        for each in (self.invitation, self.own):
            display(each, self.asks)
        draw_buttons({
            self.next_button: (self._text("next"), not is_over),
            self.all_button: (self._text("all"), not is_over),
            self.again_button: (self._text("again"), self.shown > 1),
        })  # fmt: skip

    @property
    def saved_html(self) -> str:
        """What a saved notebook shows: the whole dialogue, and nothing of what the learner wrote."""
        return dialogue_html(self.dialogue, self.language.value)
