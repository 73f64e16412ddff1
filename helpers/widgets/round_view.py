"""A round in a notebook: lines to press and reasons to type, or plans and numbers; a clock, and the sheet."""

from __future__ import annotations

from html import escape

import ipywidgets

from helpers.interview.render import paragraphs
from helpers.interview.rounds import Marking, choose, rounds, sitting
from helpers.interview.rounds.sheet import RoundSheet
from helpers.interview.rounds.sitting import Answer, say
from helpers.interview.stopwatch import Now
from helpers.interview.words import say as quiz_say
from helpers.widgets import sitting_parts as parts
from helpers.widgets.clock import Clock
from helpers.widgets.dials import choice
from helpers.widgets.sitting_view import SheetView

LINES = """<style>
.rr-sitting .rr-line {font-family: var(--jp-code-font-family, monospace); font-size: 13px; text-align: left;
 white-space: pre; width: calc(100% - 28px); height: 24px; line-height: 22px; margin: 0 14px; padding: 0 8px}
.rr-sitting .rr-line:disabled {opacity: 1}
.rr-sitting .rr-line.mod-active {background: rgb(204 102 0 / 30%); color: inherit; font-weight: bold;
 outline: 2px solid var(--jp-warn-color1, #c60)}
</style>"""


def _titles(language: str) -> list[tuple[str, str]]:
    return [(f"{say(one.kind, language)} · {one.title.in_(language)}", one.id) for one in rounds()]


class RoundView(SheetView):
    """A round. Without a front end: `.begin()`, `.mark(7, "why")`, `.hint()`, `.hand_in()`, `.hold(0)`, or
    `.answer("dp=4 tp=8")`; then `.finish()`, `.sheet`.

    name: a kind, "debugging", "review" or "design", or the id of a round. language, now: as in MockView.
    """

    FILE = "round.md"
    TEXT = "[widget] RoundView: debugging, code review or design against the clock, then a sheet with points"

    def __init__(self, name: str = "debugging", *, language: str | None = None, now: Now | None = None) -> None:
        self._now, first = now, choose(name, language, seed=0)
        self.language = parts.languages(language)
        self.which = choice(_titles(self.language.value), first.id, "round · 题目")
        self.clock = Clock(first.minutes, language=language, now=now)
        self.asked, self.said, self.note = (ipywidgets.HTML() for _ in range(3))
        self.lines, self.reasons = ipywidgets.VBox(), ipywidgets.VBox()
        self.field = ipywidgets.Text(layout=ipywidgets.Layout(width="600px", margin="2px 14px"))
        self.field.on_msg(lambda _, content, __: content.get("event") == "submit" and self._answered())
        self.sheet_page = parts.Page()
        acts = {"begin": self.begin, "hint": self.hint, "hand_in": self.hand_in, "answer": self._answered}
        acts |= {"sheet": self.finish, "finish": self.finish, "save": self.save, "again": self._prepare}
        primary = ("begin", "hand_in", "answer", "sheet")
        self.buttons = {
            name: parts.button(act, style="primary" if name in primary else "") for name, act in acts.items()
        }
        style = parts.style()
        style.value += LINES
        self._dials, below = parts.row(self.which, self.language), parts.row(*self.buttons.values())
        shown = [self.clock, self.asked, self.lines, self.reasons, self.field, self.said, self.sheet_page]
        super().__init__([style, self._dials, *shown, below, self.note])
        self.add_class("rr-sitting")
        self.which.layout.width = "480px"
        self.which.observe(self._prepare, names="value")
        self.language.observe(self._translate, names="value")
        self._prepare()

    # -- what can be done ----------------------------------------------------------------------------------------------
    def begin(self) -> RoundView:
        """Start the clock and show what is asked; a second call changes nothing."""
        self.sitting.begin()
        return self._draw(focus=None if self._is_marking else self.field)

    def mark(self, line: int, why: str = "") -> None:
        """Mark a line and say why."""
        self.sitting.mark(line, why)
        self._draw()

    def unmark(self, line: int) -> None:
        """Take a mark back."""
        self.sitting.unmark(line)
        self._draw()

    def hint(self) -> None:
        """The next hint; it costs a point."""
        hint = self.sitting.hint()
        told = say("hint", self.language.value, hint=hint) if hint else say("no_hint", self.language.value)
        self._draw(parts.said_html(told, is_right=True))

    def hand_in(self) -> None:
        """Stop the clock, and show our reasons for what was found."""
        self.sitting.hand_in()
        self._draw()
        self._first_tick.focus()

    def hold(self, place: int, is_held: bool = True) -> None:
        """My reason for this place says what ours says."""
        self.sitting.hold(place, is_held)

    def answer(self, given: str) -> Answer:
        """A plan or a number. Raises ValueError, a sentence, for what cannot be read."""
        question, place = self.sitting.question, self.sitting.place
        found = self.sitting.answer(given)
        self.field.value = ""
        told = f"{place} · {found.sentence}\n{self.sitting.text(question.why, question)}"
        left = self.sitting.question is not None
        self._draw(parts.said_html(told, is_right=found.points > 0), self.field if left else self.buttons["sheet"])
        return found

    def finish(self) -> RoundSheet:
        """End it here; the sheet has what was done so far."""
        sheet = self.sitting.finish()
        self._draw(focus=self.buttons["save"])
        if self.sitting.note:
            self._tell(self.sitting.note)
        return sheet

    @property
    def sheet(self) -> RoundSheet:
        return self.sitting.sheet

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        one, language = self.sitting, self.language.value
        if one.stage == "ready":
            return say("view.intro", language)
        if one.stage == "over":
            return one.sheet.text
        return "\n".join(
            [one.item.told(one.item.prompt).in_(language), *(one.item.lines if self._is_marking else [one.asked or ""])]
        )

    # -- what is shown -------------------------------------------------------------------------------------------------
    @property
    def _is_marking(self) -> bool:
        return isinstance(self.sitting, Marking)

    def _prepare(self, change: object = None) -> None:
        """The round of the dials, not begun."""
        self.sitting = sitting(choose(self.which.value), language=self.language.value, now=self._now)
        self.lines.children = tuple(map(self._line, range(1, 1 + len(getattr(self.sitting.item, "lines", [])))))
        self._draw()

    def _translate(self, change: object) -> None:
        """The same round in another language; the dial then prepares it."""
        chosen = self.which.value
        self.which.options = _titles(self.language.value)
        self.which.value = chosen
        self._prepare()

    def _line(self, number: int) -> ipywidgets.ToggleButton:
        made = ipywidgets.ToggleButton(description=f"{number:>3}  {self.sitting.item.lines[number - 1]}")
        made.add_class("rr-line")
        made.disabled = number in self.sitting.item.gaps
        made.observe(lambda change: self._pressed(number, change["new"]), names="value")
        return made

    def _pressed(self, number: int, is_marked: bool) -> None:
        if is_marked != (number in self.sitting.marks):
            (self.mark if is_marked else self.unmark)(number)

    def _answered(self) -> None:
        try:
            self.answer(self.field.value)
        except ValueError as error:
            self.note.value = parts.alert_html(str(error))

    @property
    def _first_tick(self) -> ipywidgets.Widget:
        """What comes first once the marks are in."""
        found = self.reasons.children
        return found[0].children[1].children[0] if found else self.buttons["sheet"]

    def _draw(self, said: str = "", focus: ipywidgets.Widget | None = None) -> RoundView:
        one, stage = self.sitting, self.sitting.stage
        self.clock.speak(self.language.value)
        self.clock.show(one.watch)
        parts.display(self.clock, stage in ("asked", "compare"))
        self.asked.value, self.said.value, self.note.value = self._asked_html(), said, ""
        self._draw_lines()
        self.sheet_page.show(one.sheet._repr_html_() if stage == "over" else "")
        is_asked, marks = stage == "asked", self._is_marking
        shown = {"begin": stage == "ready", "hint": is_asked and marks, "hand_in": is_asked and marks}
        shown |= {"answer": is_asked and not marks, "finish": is_asked, "sheet": stage == "compare"}
        shown |= {"save": stage == "over", "again": stage == "over"}
        for name, button in self.buttons.items():
            own = name in ("hint", "hand_in", "answer", "sheet", "again")
            word = f"mock.{name}" if name in ("finish", "save") else name
            button.description = say("view." + name, self.language.value) if own else self._say(word)
            parts.display(button, shown[name])
        parts.display(self.field, shown["answer"])
        parts.display(self._dials, stage in ("ready", "over"))
        if focus is not None:
            focus.focus()
        return self

    def _asked_html(self) -> str:
        one, language = self.sitting, self.language.value
        told = one.item.told(one.item.prompt).in_(language)
        if one.stage == "ready":
            told = say("view.intro", language)
        elif one.stage == "compare" and self._is_marking:
            told = say("view.compare" if one.found else "view.none_found", language)
        elif one.stage == "asked":
            told += "\n\n" + (say("view.mark", language) if self._is_marking else one.asked)
        return f'<div class="rr-answer" lang="{language}">{paragraphs(told)}</div>' if one.stage != "over" else ""

    def _draw_lines(self) -> None:
        """The lines stay what they are; a reason is asked for below, for each that is marked."""
        one, stage = self.sitting, self.sitting.stage
        if not self._is_marking:
            parts.display(self.lines, False)
            self.reasons.children = ()
            return
        for number, button in enumerate(self.lines.children, start=1):
            button.value = number in one.marks
            button.disabled = stage != "asked" or number in one.item.gaps
        parts.display(self.lines, stage in ("asked", "compare"))  # last: what is seen takes a key already
        if stage == "asked":
            there = {field.line: field for field in self.reasons.children}
            self.reasons.children = tuple(there.get(line) or self._reason(line) for line in sorted(one.marks))
            for field in self.reasons.children:
                field.value = one.marks[field.line]
        else:
            self.reasons.children = tuple(map(self._compared, one.found)) if stage == "compare" else ()

    def _reason(self, line: int) -> ipywidgets.Text:
        label = say("view.why", self.language.value, line=line)
        field = ipywidgets.Text(description=label, layout=ipywidgets.Layout(width="calc(100% - 28px)"))
        field.style.description_width, field.line = "120px", line
        field.observe(lambda change: self.sitting.marks.update({line: change["new"].strip()}), names="value")
        return field

    def _compared(self, place: int) -> ipywidgets.VBox:
        """What was said of a place that was found, ours below it, and whether the two agree."""
        one, language = self.sitting, self.language.value
        row = next(row for n, row in enumerate(one.rows()) if n == place)
        tick = ipywidgets.Checkbox(description=say("held", language), indent=False)
        tick.observe(lambda change: self.hold(place, change["new"]), names="value")
        told = {say("column.given", language): row.given, say("column.right", language): row.right}
        colon = quiz_say("colon", language)
        shown = paragraphs("\n\n".join([f"**{row.title}**", *(f"{name}{colon}{text}" for name, text in told.items())]))
        return ipywidgets.VBox([ipywidgets.HTML(f'<div class="rr-answer">{shown}</div>'), parts.row(tick)])

    @property
    def kept(self) -> str:
        """What a round is."""
        return f"<p>{escape(say('view.intro', self.language.value))}</p>"
