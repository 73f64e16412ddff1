"""Provides TalkView, which plays a conversation in a notebook: it shows the steps and sends the learner's replies.

A `Talk` (helpers/interview/steps.py) is a quiz, a mock interview, a round, a drill or a dialogue. It yields steps: an
`Ask` has everything that the learner sees while they answer, a `Tell` is a sentence such as a verdict, and a `Show` a
document such as the sheet of points. `interview_views.py` has the views of the five kinds, which choose a talk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from itertools import zip_longest
from typing import Any

import ipywidgets

from helpers.interview.answers import LETTERS
from helpers.interview.card_html import anchor, inline, paragraphs
from helpers.interview.cards import RATINGS
from helpers.interview.cards import words as quiz_words
from helpers.interview.dialogues import turn_html
from helpers.interview.dialogues import words as dialogue_words
from helpers.interview.steps import FINISH, Ask, Reply, Show, Talk, Tell, TextPart, labels
from helpers.learner.words import book
from helpers.widgets.clock import Clock
from helpers.widgets.view import (
    Page,
    SavedWidget,
    alert_html,
    button,
    display,
    feedback_html,
    on_enter,
    row,
    style_sheet,
)

ACTIONS = ("begin", "skip", "give_up", "hint", "all", FINISH)  # each has a button of its own: a second press of Enter
# on one button must not do another thing, such as give up the drill
FOLDS = ("longer", "usual_mistake", "follow_ups")  # parts that open with a click on their label
LINKS = ("shown_by", "explained_by")
WITH_SUBMIT = ("ready", "pause", "number", "text", "notes", "lines", "agree")  # forms with a button to send the reply
round_words = book("round")


class TalkView(SavedWidget, ipywidgets.VBox):
    """A conversation. Without a front end: `.step`, `.reply("b")`, `.act("skip")`, `.submit(function)`, then `.text`.

    A subclass makes the talk and perhaps dials, and calls `start()`. step: the present Ask, or None once the talk is
    over. told: what was told since the last reply. document: what was shown at the end. problem: why there is no talk.
    """

    DEFAULT_FILE = ""  # where `save()` writes the document
    CALL, NAME = "submit", ""  # the method that takes a program, and what the notebook may call this view
    HIDDEN: tuple[str, ...] = ()  # actions that have no button here
    step: Ask | None = None
    talk: Talk | None = None

    def __init__(self, dials: Sequence[ipywidgets.Widget] = (), above: Sequence[ipywidgets.Widget] = ()) -> None:
        self._dials = row(*dials)
        self.clock, self.lines, self.ticks = Clock(), LineMarks(self), ipywidgets.VBox()
        self.prompt, self.solution, self.call, self.feedback, self.note = (ipywidgets.HTML() for _ in range(5))
        self.links, self.document_page = Page(), Page()
        self.document_page.layout.margin = "0 14px"
        self._make_controls()
        content = [self.clock, self.prompt, self._options_box, self.solution, self.links, self.lines, self.ticks]
        content += [self._field_row, self.notes, self.call, self.feedback, self.document_page, self._rating_row]
        super().__init__([style_sheet("interview"), self._dials, *above, *content, self._buttons, self.note])
        self.add_class("rr-sitting")

    def _make_controls(self) -> None:
        """Make every control once. A hidden one stays, so that it can take the keyboard's focus at once."""
        self.option_buttons = [button(lambda letter=letter: self.reply(letter)) for letter in LETTERS]
        for each in self.option_buttons:
            each.add_class("rr-option")
        layout = ipywidgets.Layout(margin="2px 12px", max_width="720px")
        self._options_box = ipywidgets.VBox(self.option_buttons, layout=layout)
        self.rating_buttons = {name: button(lambda name=name: self.reply(name)) for name in RATINGS}
        self._rating_label = ipywidgets.HTML()
        self._rating_row = row(self._rating_label, *self.rating_buttons.values())
        self.field, self.unit = ipywidgets.Text(), ipywidgets.HTML()
        self.field.style.description_width = "initial"
        on_enter(self.field, self._submit)
        self._field_row = row(self.field, self.unit)
        layout = ipywidgets.Layout(width="calc(100% - 28px)", margin="2px 14px")
        self.notes = ipywidgets.Textarea(layout=layout, rows=3)
        self.submit_button = button(self._submit, style="primary")
        self.action_buttons = {name: button(lambda name=name: self.act(name)) for name in ACTIONS}
        self.save_button, self.again_button = button(self.save), button(self.again)
        self._buttons = row(self.submit_button, *self.action_buttons.values(), self.save_button, self.again_button)

    # -- the talk ------------------------------------------------------------------------------------------------------
    def make_talk(self) -> Talk:
        """The conversation. Raises ValueError, a sentence, where the dials match nothing."""
        raise NotImplementedError

    def start(self, change: object = None) -> None:
        """Begin the talk that the dials describe. Answers given so far are in the progress file already."""
        self.talk, self.step, self.told, self.document = None, None, [], None
        self._last, self._replies, self._notes, self.problem = Ask(form=""), [], "", ""
        try:
            self.talk = self.make_talk()
        except ValueError as error:
            self.problem = str(error)
            return self._draw()
        self._steps = self.talk.steps()
        self._advance(None)
        return self._draw()

    def again(self) -> None:
        """Begin another talk."""
        self.start()
        self._focus()

    def reply(self, value: Any = "", action: str = "") -> None:
        """Reply to the present question. It stays, with a `problem`, if the value cannot be read."""
        if self.step is None:
            return
        self.lines.send_reasons()
        self._take(Reply(value, action))
        if self.step is None or self.step.form not in ("lines", "code"):
            self._focus()

    def act(self, action: str) -> None:
        """Take an action instead of an answer, such as "skip" or "finish"; one that is not offered does nothing."""
        if self.step is not None and (action == FINISH or self.step.has_action(action)):
            self.reply(self.notes.value if action == "all" else "", action)

    def submit(self, answer: Any) -> Tell:
        """Check a program, a function or class, and return the verdict. Raises ValueError where none is asked for."""
        if self.step is None or self.step.form != "code":
            raise ValueError(self.problem or "no program is asked for now: answer the questions above first")
        self._take(Reply(answer))
        return self.told[0]

    def finish(self) -> Any:
        """End the talk here; what was done so far counts. Returns the document that is shown, such as the sheet."""
        self.act(FINISH)
        return self.document

    def save(self, path: str | os.PathLike = "") -> None:
        """Write the document to a file, .md, .html or .txt. A file that exists is not overwritten."""
        try:
            message = labels("mock.saved", self._language, path=self.document.save(path or self.DEFAULT_FILE).name)
        except OSError as error:
            message = labels("mock.unsaved", self._language, error=error.strerror or error)
        self.note.value = f'<p class="rr-said" role="status">{escape(message)}</p>'

    def _take(self, reply: Reply) -> None:
        """Send a reply, and draw what comes up to the next question."""
        self._replies.append(reply)
        self._last, self.told = self.step, []
        try:
            self._advance(reply)
        except BaseException:  # what went wrong in a check ends the generator: another one goes on from there
            self._steps = self.talk.steps()
            self._advance(None)
            raise
        finally:
            self._draw()

    def _advance(self, reply: Reply | None) -> None:
        """Take steps until a question comes, or until the talk is over."""
        self.step = None
        with suppress(StopIteration):
            step = self._steps.send(reply)
            while not isinstance(step, Ask):
                if isinstance(step, Show):
                    self.document, self._can_save = step.document, step.can_save
                elif step.style == "problem":
                    self._notes = step.text
                else:
                    self.told.append(step)
                step = next(self._steps)
            self.step = step

    def _submit(self) -> None:
        """Reply with what the controls of the question hold."""
        form = self.step.form if self.step else ""
        values = {"number": self.field.value, "text": self.field.value, "notes": self.notes.value}
        if form == "agree":
            values["agree"] = [each.name for each in self._checkboxes if each.value]
        self.reply(values.get(form, ""))

    # -- what is shown -------------------------------------------------------------------------------------------------
    @property
    def _language(self) -> str:
        return self.talk.language if self.talk else self.language.value

    @property
    def has_begun(self) -> bool:
        return bool(self._replies)

    @property
    def _shown(self) -> Ask:
        """The question that is shown: at the end of a talk without a sheet, the last one stays."""
        return self.step or (Ask(form="") if self.document and self._can_save else self._last)

    @property
    def _parts(self) -> tuple[TextPart, ...]:
        """The parts of the question, and at the end of a talk those that were told after it."""
        told = [part for tell in self.told for part in tell.parts if self.step is None]
        return tuple(dict.fromkeys((*self._shown.parts, *told)))

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        ask, lines = self._shown, [self.problem, *map(repr, self.told), self._notes]
        lines += [" · ".join(ask.heading), ask.context, ask.question, ask.problem]
        lines += [f"{option.value}) {option.label}" for option in ask.options if ask.form == "choice"]
        lines += [text for part in self._parts for text in (part.label, *part.texts)]
        lines += [ask.code if ask.form == "lines" else "", self.document.text if self.document else ""]
        return "\n".join(filter(None, lines))

    def _draw(self) -> None:
        """Show the present step."""
        ask, language = self._shown, self._language
        self.clock.speak(language)
        if ask.clock:
            self.clock.show(ask.clock)
        display(self.clock, bool(self.step and ask.clock))
        self.prompt.value = prompt_html(ask, language)
        self.solution.value = parts_html([part for part in self._parts if part.name not in LINKS], language)
        self.links.show(links_html([part for part in self._parts if part.name in LINKS], language))
        self.call.value = ""
        if ask.form == "code" and self.step:
            self.call.value = call_html(f"{name_in_notebook(self, self.NAME)}.{self.CALL}({ask.name})", language)
        self.feedback.value = self._feedback_html(ask)
        self.document_page.show(self.document._repr_html_() if self.document else "")
        self.note.value = alert_html(self._notes)
        self._draw_controls(self.step or Ask(form=""), language)

    def _feedback_html(self, ask: Ask) -> str:
        """What was told, and why there is no talk or why the last reply could not be read."""
        return "".join(map(tell_html, self.told)) + alert_html(self.problem or (ask.problem if self.step else ""))

    def _draw_controls(self, ask: Ask, language: str) -> None:
        """Show the controls that this question needs."""
        texts = [f"{option.value})  {_plain(option.label)}" for option in ask.options] if ask.form == "choice" else []
        for each, text in zip_longest(self.option_buttons, texts, fillvalue=""):
            draw_button(each, text)
        display(self._options_box, ask.form == "choice")
        self._rating_label.value = f'<span style="font-size:14px;margin-right:8px">{labels("rate", language)}</span>'
        for name, each in self.rating_buttons.items():
            each.description = quiz_words(name, language)
        display(self._rating_row, ask.form == "rating")
        if ask.form != self._last.form or not ask.problem:  # a number that could not be read stays, to be corrected
            self.field.value = ""
        self.field.layout.width = "230px" if ask.form == "number" else "600px"
        self.field.description = labels("quiz.answer", language)
        self.unit.value = f'<span style="font-size:14px">{escape(ask.unit)}</span>'
        display(self._field_row, ask.form in ("number", "text"))
        self.notes.value, self.notes.placeholder = "", dialogue_words("own", language)
        display(self.notes, ask.form == "notes")
        self.lines.draw(ask)
        self._draw_ticks(ask)
        draw_button(self.submit_button, ask.submit if ask.form in WITH_SUBMIT else "")
        offered = {action.value: action.label for action in ask.actions if action.value not in self.HIDDEN}
        for name, each in self.action_buttons.items():
            draw_button(each, offered.get(name, ""))
        draw_button(self.save_button, labels("mock.save", language) if self.document and self._can_save else "")
        draw_button(self.again_button, self._again_text(language))

    def _again_text(self, language: str) -> str:
        """The word on the button that begins another talk; "" where it is hidden."""
        return ""

    def _draw_ticks(self, ask: Ask) -> None:
        """For each thing to agree with, its details and a box to tick."""
        options = ask.options if ask.form == "agree" else ()
        self._checkboxes = [ipywidgets.Checkbox(description=option.label, indent=False) for option in options]
        for option, box in zip(options, self._checkboxes, strict=True):
            box.name = option.value
        details = [f'<div class="rr-answer">{paragraphs(option.details)}</div>' for option in options]
        pairs = zip(details, self._checkboxes, strict=True)
        self.ticks.children = [ipywidgets.VBox([ipywidgets.HTML(text), row(box)]) for text, box in pairs]

    def _focus(self) -> None:
        """Give the keyboard to the control with which the learner goes on."""
        form = self.step.form if self.step else "over"
        controls = {"choice": self.option_buttons[0], "rating": self.rating_buttons["good"], "number": self.field}
        controls |= {"text": self.field, "agree": next(iter(self._checkboxes), self.submit_button)}
        controls |= dict.fromkeys(("ready", "pause"), self.submit_button)
        controls["over"] = self.save_button if self.document and self._can_save else self.again_button
        if form in controls:
            controls[form].focus()


class LineMarks(ipywidgets.VBox):
    """The lines of a round, each a button that marks it, and below them a field for the reason of each mark."""

    def __init__(self, view: TalkView) -> None:
        self._view, self._ask = view, Ask(form="")
        self.buttons, self.reasons = ipywidgets.VBox(), ipywidgets.VBox()
        super().__init__([self.buttons, self.reasons])

    def draw(self, ask: Ask) -> None:
        """Show the lines and marks of this question; any other question hides them."""
        is_new, self._ask = ask.form == "lines" and ask.code != self._ask.code, ask
        if is_new:
            lines = enumerate(ask.code.splitlines(), start=1)
            self.buttons.children = tuple(self._line(number, line) for number, line in lines)
            self.reasons.children = ()
        for number, each in enumerate(self.buttons.children, start=1):
            each.value = number in ask.marks
        fields = {field.line: field for field in self.reasons.children}  # those that stay keep what is typed
        self.reasons.children = tuple(fields.get(line) or self._reason(line) for line in sorted(ask.marks))
        # Only now, because a line that is visible can be pressed, and by then it must have its right state.
        display(self, ask.form == "lines")

    def send_reasons(self) -> None:
        """Tell the talk the reasons that were typed since the last reply."""
        if self._ask.form == "lines":
            for field in self.reasons.children:
                if field.value.strip() != self._ask.marks.get(field.line):
                    self._view._advance(Reply((field.line, field.value), "mark"))
                    self._ask = self._view.step

    def _line(self, number: int, line: str) -> ipywidgets.ToggleButton:
        """The button of a line."""
        made = ipywidgets.ToggleButton(description=f"{number:>3}  {line}", disabled=number in self._ask.fixed)
        made.add_class("rr-line")
        made.observe(lambda change: self._pressed(number, change["new"]), names="value")
        return made

    def _pressed(self, number: int, is_marked: bool) -> None:
        """Called when a line's button changes, by the learner or by `draw`, which must not mark it again."""
        if self._ask.form == "lines" and is_marked != (number in self._ask.marks):
            self._view.reply((number, "") if is_marked else number, "mark" if is_marked else "unmark")

    def _reason(self, line: int) -> ipywidgets.Text:
        """A text field for the reason why a line is wrong; its attribute `line` says which."""
        label = round_words("view.why", self._view._language, line=line)
        layout, value = ipywidgets.Layout(width="calc(100% - 28px)"), self._ask.marks[line]
        field = ipywidgets.Text(description=label, value=value, layout=layout)
        field.style.description_width, field.line = "120px", line
        return field


# -- HTML ------------------------------------------------------------------------------------------------------------
def prompt_html(ask: Ask, language: str) -> str:
    """Heading, context and question, and for the forms that are not plain, what to do."""
    how = {"lines": round_words("view.mark", language), "notes": dialogue_words("your_turn", language)}
    heading = f'<p class="rr-meta">{escape(" · ".join(ask.heading))}</p>' if ask.heading else ""
    context = "\n\n".join(filter(None, (ask.context, how["lines"] if ask.form == "lines" else "")))
    context = f'<div class="rr-answer" lang="{language}">{paragraphs(context)}</div>' if context else ""
    question = f'<p class="rr-question" aria-live="polite">{inline(ask.question)}</p>' if ask.question else ""
    return heading + context + question


def parts_html(parts: Sequence[TextPart], language: str) -> str:
    """The parts of a question or an answer; turns of a dialogue are a list that a screen reader follows."""
    own, body, is_dialogue = "", "", False
    for part in parts:
        if part.name == "own":
            own = part.text
        elif part.name in ("interviewer", "candidate"):
            body, own, is_dialogue = body + turn_html(part, language, own=own), "", True
        else:
            body += part_html(part)
    if is_dialogue:
        return f'<div lang="{language}" aria-live="polite" style="margin:0 14px">{body}</div>'
    return f'<div class="rr-answer" lang="{language}">{body}</div>' if body else ""


def part_html(part: TextPart) -> str:
    """One part that is neither a turn nor a link."""
    text = "".join(map(paragraphs, part.texts))
    if part.name in FOLDS:
        is_open = " open" if part.name == "longer" and not part.is_folded else ""
        return f"<details{is_open}><summary>{escape(part.label)}</summary>{text}</details>".replace(
            " open>", ' open="">'
        )
    if part.name == "code":
        return f"<details><summary>{escape(part.label)}</summary><pre>{escape(part.text)}</pre></details>"
    label = f'<b class="rr-label">{part.label}</b>' if part.label else ""
    if part.name == "task":
        return f"<p><b>{escape(part.label)}</b></p>{text}"
    if part.name == "counts":
        return f"{label}<ul>{''.join(f'<li>{inline(item)}</li>' for item in part.items)}</ul>"
    if part.name == "stub":
        return f"{label}<pre>{escape(part.text)}</pre>"
    if part.name == "question":
        return f'<p class="rr-meta" style="margin:0">{inline(part.text)}</p>'
    return label + text


def links_html(parts: Sequence[TextPart], language: str) -> str:
    """A line such as "Shown by: …" with the links of these parts; "" for none."""
    if not parts:
        return ""
    anchors = labels("comma", language).join(anchor(part.text, part.link) for part in parts)
    label = f"{parts[0].label}{quiz_words('colon', language)}"
    return f'<p style="margin:2px 14px;font-size:13px">{label}{anchors}</p>'


def tell_html(tell: Tell) -> str:
    """What was told: a verdict, or a plain sentence."""
    if tell.style in ("right", "wrong"):
        return feedback_html(repr(tell), is_right=tell.passed)
    return f'<p class="rr-said" aria-live="polite">{inline(repr(tell))}</p>' if repr(tell) else ""


def call_html(call: str, language: str) -> str:
    """The line of code that submits an answer, to copy."""
    then = f'<p class="rr-meta" style="margin:0">{labels("then", language)}</p>'
    return f'<div style="margin:2px 14px">{then}<pre>{escape(call)}</pre></div>'


def draw_button(each: ipywidgets.Button, text: str) -> None:
    """Give a button its text; one without a text is hidden."""
    each.description = text
    display(each, bool(text))


def name_in_notebook(widget: object, default: str = "") -> str:
    """What the learner's notebook calls this widget: its variable, `default`, or IPython's `_2` for Out[2]."""
    from IPython import get_ipython

    shell = get_ipython()
    names = [name for name, value in dict(shell.user_ns if shell else {}).items() if value is widget]
    variables = [name for name in names if not name.startswith("_")]
    outputs = [name for name in names if name[1:].isdecimal()]
    # The best comes first; "mock" is a name that a learner may give it, where there is no other.
    candidates = [*variables, default, *outputs, "mock"]
    return next(filter(None, candidates))


def _plain(text: str) -> str:
    """The text without the markup for code and bold, because a button shows no markup."""
    return text.replace("`", "").replace("**", "")
