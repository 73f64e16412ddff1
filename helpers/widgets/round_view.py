"""Provides RoundView, an interview round in a notebook: debugging, code review or system design against the clock.

In debugging and review, the learner presses the lines that are wrong and types why; in design, they type plans and
numbers. The round ends with a sheet of points. An attempt, of the class MarkingAttempt for debugging and review, keeps
what the learner did; its stage is "ready", "asked" (the clock runs), "compare" (the learner's reasons stand beside the
right ones) or "over". SheetView, the base class, has `save()`, which writes the sheet to DEFAULT_FILE, and
`_text(name)`, a text that all interview views share. `in_(language)` gives a text in a language.
"""

from __future__ import annotations

from html import escape
from itertools import islice

import ipywidgets

from helpers.interview.card_html import paragraphs
from helpers.interview.cards import words as quiz_words  # texts by name: learner/words/quiz.yaml
from helpers.interview.drills import Now
from helpers.interview.round_attempt import DesignAnswer, MarkingAttempt, RoundSheet, choose_round, new_attempt
from helpers.interview.round_items import rounds, words  # words: texts by name, round.yaml
from helpers.widgets.clock import Clock
from helpers.widgets.dials import choice
from helpers.widgets.interview_view import SheetView, draw_buttons, language_dial
from helpers.widgets.view import Page, alert_html, button, display, feedback_html, on_enter, row


def _titles(language: str) -> list[tuple[str, str]]:
    """Kind and title of each round, with its id, for the dial."""
    return [(f"{words(one.kind, language)} · {one.title.in_(language)}", one.id) for one in rounds()]


class RoundView(SheetView):
    """An interview round. Without a front end: `.begin()`, `.mark(7, "why")`, `.hint()`, `.hand_in()`, `.hold(0)`, or
    `.answer("dp=4 tp=8")`; then `.finish()`, `.sheet`. `hold` says whether the reason for a mistake is as good as the
    course's.

    name: a kind, "debugging", "review" or "design", or the id of a round. language: "en" or "zh", by default the
    learner's. now: a function that returns the time, for tests.
    """

    DEFAULT_FILE = "round.md"
    TEXT = "[widget] RoundView: debugging, code review or design against the clock, then a sheet with points"

    def __init__(self, name: str = "debugging", *, language: str | None = None, now: Now | None = None) -> None:
        self._now, first = now, choose_round(name, language, seed=0)  # seed 0: always the same round of a kind
        self.language = language_dial(language)
        self.which = choice(_titles(self.language.value), first.id, "round · 题目")
        self.clock = Clock(first.minutes, language=language, now=now)
        self.prompt, self.feedback, self.note = (ipywidgets.HTML() for _ in range(3))
        self.lines, self.reasons = ipywidgets.VBox(), ipywidgets.VBox()
        self.field = ipywidgets.Text(layout=ipywidgets.Layout(width="600px", margin="2px 14px"))
        on_enter(self.field, self._submit)
        self.sheet_page = Page()
        actions = {"begin": self.begin, "hint": self.hint, "hand_in": self.hand_in, "answer": self._submit}
        # Two buttons end the round: "sheet" once the reasons were compared, "finish" before that.
        actions |= {"sheet": self.finish, "finish": self.finish, "save": self.save, "again": self._prepare}
        primary = ("begin", "hand_in", "answer", "sheet")
        self.buttons = {name: button(act, style="primary" if name in primary else "") for name, act in actions.items()}
        self._dials, below = row(self.which, self.language), row(*self.buttons.values())
        shown = [self.clock, self.prompt, self.lines, self.reasons, self.field, self.feedback, self.sheet_page]
        super().__init__([self._dials, *shown, below, self.note])
        self.which.layout.width = "480px"
        self.which.observe(self._prepare, names="value")
        self.language.observe(self._translate, names="value")
        self._prepare()

    # -- actions -------------------------------------------------------------------------------------------------------
    def begin(self) -> RoundView:
        """Start the clock and show what is asked; a second call changes nothing."""
        self.attempt.begin()
        return self._draw(focus=None if self._is_marking else self.field)

    def mark(self, line: int, why: str = "") -> None:
        """Mark a line and say why."""
        self.attempt.mark(line, why)
        self._draw()

    def unmark(self, line: int) -> None:
        """Take a mark back."""
        self.attempt.unmark(line)
        self._draw()

    def hint(self) -> None:
        """Show the next hint, which costs a point."""
        hint = self.attempt.hint()
        text = words("hint" if hint else "no_hint", self.language.value, hint=hint)
        self._draw(feedback_html(text, is_right=True))  # is_right: a hint must not look like a wrong answer

    def hand_in(self) -> None:
        """Stop the clock, and show the course's reason beside the learner's for each mistake that was found."""
        self.attempt.hand_in()
        self._draw()
        self._first_tick.focus()

    def hold(self, place: int, is_held: bool = True) -> None:
        """Accept the learner's reason for a mistake, which gives a point, or reject it. place: its index."""
        self.attempt.confirm_reason(place, is_held)

    def answer(self, given: str) -> DesignAnswer:
        """Answer with a plan or a number. Raises ValueError, with a message, for what cannot be read."""
        question, place = self.attempt.question, self.attempt.position  # the current one, and which of how many it is
        outcome = self.attempt.answer(given)
        self.field.value = ""
        # `why` is the course's explanation; `attempt.text` fills in the numbers of this question.
        text = f"{place} · {outcome.sentence}\n{self.attempt.text(question.why, question)}"
        has_more = self.attempt.question is not None
        self._draw(feedback_html(text, is_right=outcome.points > 0), self.field if has_more else self.buttons["sheet"])
        return outcome

    def finish(self) -> RoundSheet:
        """End the round; the sheet covers what was done so far."""
        sheet = self.attempt.finish()
        self._draw(focus=self.buttons["save"])
        if self.attempt.note:
            self._draw_note(self.attempt.note)
        return sheet

    @property
    def sheet(self) -> RoundSheet:
        """The points so far. It can be read at any time."""
        return self.attempt.sheet

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        attempt, language = self.attempt, self.language.value
        if attempt.stage == "ready":
            return words("view.intro", language)
        if attempt.stage == "over":
            return attempt.sheet.text
        prompt = attempt.item.filled(attempt.item.prompt).in_(language)  # filled: with the numbers of this round
        return "\n".join([prompt, *(attempt.item.lines if self._is_marking else [attempt.prompt or ""])])

    # -- display -------------------------------------------------------------------------------------------------------
    @property
    def _is_marking(self) -> bool:
        """Whether the round is debugging or review, where lines are marked."""
        return isinstance(self.attempt, MarkingAttempt)

    def _prepare(self, change: object = None) -> None:
        """A new attempt at the round of the dial, which has not begun."""
        # `attempt.item` is the round, with its text (`prompt`) and, for marking, its lines of code (`lines`). `found`
        # are the numbers of the mistakes that the learner has marked, and `marks` maps each marked line to the reason.
        # In a design round `attempt.prompt` is the current question, and how an answer to it is written.
        self.attempt = new_attempt(choose_round(self.which.value), language=self.language.value, now=self._now)
        self.lines.children = tuple(map(self._line, range(1, 1 + len(getattr(self.attempt.item, "lines", [])))))
        self._draw()

    def _translate(self, change: object) -> None:
        """Prepare the same round in another language."""
        chosen = self.which.value
        self.which.options = _titles(self.language.value)
        self.which.value = chosen
        self._prepare()

    def _line(self, number: int) -> ipywidgets.ToggleButton:
        """The button of a line of code; `gaps` are the lines that cannot be wrong, such as empty ones."""
        made = ipywidgets.ToggleButton(description=f"{number:>3}  {self.attempt.item.lines[number - 1]}")
        made.add_class("rr-line")
        made.disabled = number in self.attempt.item.gaps
        made.observe(lambda change: self._pressed(number, change["new"]), names="value")
        return made

    def _pressed(self, number: int, is_marked: bool) -> None:
        """Called when a line's button changes, by the learner or by `_draw`, which must not mark it again."""
        if is_marked != (number in self.attempt.marks):
            (self.mark if is_marked else self.unmark)(number)

    def _submit(self) -> None:
        """Answer with what stands in the text field."""
        try:
            self.answer(self.field.value)
        except ValueError as error:
            self.note.value = alert_html(str(error))

    @property
    def _first_tick(self) -> ipywidgets.Widget:
        """The control that takes the focus once the marks are submitted."""
        compared = self.reasons.children  # each has the reasons, and a row with the box to tick
        return compared[0].children[1].children[0] if compared else self.buttons["sheet"]

    def _draw(self, feedback: str = "", focus: ipywidgets.Widget | None = None) -> RoundView:
        """Show the attempt's state. feedback: HTML on the last action. focus: the control that takes the keyboard."""
        attempt, stage = self.attempt, self.attempt.stage
        self.clock.speak(self.language.value)  # speak: in which language its texts are shown
        self.clock.show(attempt.watch)
        display(self.clock, stage in ("asked", "compare"))
        self.prompt.value, self.feedback.value, self.note.value = self._prompt_html(), feedback, ""
        self._draw_lines()
        self.sheet_page.show(attempt.sheet._repr_html_() if stage == "over" else "")
        is_asked, marks = stage == "asked", self._is_marking
        # The name of each button, and whether it is shown.
        shown = {"begin": stage == "ready", "hint": is_asked and marks, "hand_in": is_asked and marks}
        shown |= {"answer": is_asked and not marks, "finish": is_asked, "sheet": stage == "compare"}
        shown |= {"save": stage == "over", "again": stage == "over"}
        draw_buttons({each: (self._button_text(name), shown[name]) for name, each in self.buttons.items()})
        display(self.field, shown["answer"])
        display(self._dials, stage in ("ready", "over"))
        if focus is not None:
            focus.focus()
        return self

    def _button_text(self, name: str) -> str:
        """The description of a button in the language of the dial."""
        if name in ("hint", "hand_in", "answer", "sheet", "again"):  # words of rounds alone
            return words(f"view.{name}", self.language.value)
        # The other buttons are those of the mock interview too, and so are their texts.
        return self._text(f"mock.{name}" if name in ("finish", "save") else name)

    def _prompt_html(self) -> str:
        """What is asked in this stage, as HTML."""
        attempt, language = self.attempt, self.language.value
        text = attempt.item.filled(attempt.item.prompt).in_(language)
        if attempt.stage == "ready":
            text = words("view.intro", language)
        elif attempt.stage == "compare" and self._is_marking:
            text = words("view.compare" if attempt.found else "view.none_found", language)
        elif attempt.stage == "asked":
            text += "\n\n" + (words("view.mark", language) if self._is_marking else attempt.prompt)
        return f'<div class="rr-answer" lang="{language}">{paragraphs(text)}</div>' if attempt.stage != "over" else ""

    def _draw_lines(self) -> None:
        """Mark the lines that were pressed, and below them ask for a reason for each, or compare the reasons."""
        attempt, stage = self.attempt, self.attempt.stage
        if not self._is_marking:
            display(self.lines, False)
            self.reasons.children = ()
            return
        for number, line_button in enumerate(self.lines.children, start=1):
            line_button.value = number in attempt.marks
            line_button.disabled = stage != "asked" or number in attempt.item.gaps
        # Only now, because a line that is visible can be pressed, and by then it must have its right state.
        display(self.lines, stage in ("asked", "compare"))
        if stage == "asked":
            fields = {field.line: field for field in self.reasons.children}  # those that stay keep what is typed
            self.reasons.children = tuple(fields.get(line) or self._reason(line) for line in sorted(attempt.marks))
            for field in self.reasons.children:
                field.value = attempt.marks[field.line]
        else:
            self.reasons.children = tuple(map(self._compared, attempt.found)) if stage == "compare" else ()

    def _reason(self, line: int) -> ipywidgets.Text:
        """A text field for the reason why a line is wrong; its attribute `line` says which."""
        label = words("view.why", self.language.value, line=line)
        field = ipywidgets.Text(description=label, layout=ipywidgets.Layout(width="calc(100% - 28px)"))
        field.style.description_width, field.line = "120px", line
        field.observe(lambda change: self.attempt.marks.update({line: change["new"].strip()}), names="value")
        return field

    def _compared(self, place: int) -> ipywidgets.VBox:
        """The learner's reason for a mistake that was found, the right one below it, and a box for "they agree"."""
        attempt, language = self.attempt, self.language.value
        mistake = next(islice(attempt.rows(), place, None))  # the row of the sheet with this number
        tick = ipywidgets.Checkbox(description=words("held", language), indent=False)  # "my reason says this"
        tick.observe(lambda change: self.hold(place, change["new"]), names="value")
        # The colon comes from the texts, because the Chinese one is another character.
        colon, cells = quiz_words("colon", language), {"given": mistake.given, "right": mistake.right}
        reasons = [f"{words(f'column.{name}', language)}{colon}{text}" for name, text in cells.items()]
        shown = paragraphs("\n\n".join([f"**{mistake.title}**", *reasons]))
        return ipywidgets.VBox([ipywidgets.HTML(f'<div class="rr-answer">{shown}</div>'), row(tick)])

    @property
    def saved_html(self) -> str:
        """What a saved notebook shows: what a round is, without its questions."""
        return f"<p>{escape(words('view.intro', self.language.value))}</p>"
