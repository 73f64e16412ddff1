"""Provides `guess`, a question that a learner answers before the result is shown, and reads what was answered.

The answer is a number, a range, a choice or an order; only the first one counts. A learner may switch guesses off
(GUESS=off), and is then asked nothing. `guess` returns a GuessView, whose GuessControls hold the text fields and
buttons. `read_guess` turns typed text into a value. `value_text` and `error_sentence` write an answer, and how far it
is from the truth, for the view of the result, which takes the truth from `known_declaration`. A text of a question
exists in every language: `in_()` gives it in the learner's, and `en` in English, by which a choice is stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets

from helpers.interview.answers import FACTORS, KINDS, how_far_off, read_number
from helpers.interview.card_html import inline
from helpers.learner.guesses.calibration import compare, format_answer, geometric_middle
from helpers.learner.guesses.questions import Declaration, Question, declaration, make_question
from helpers.learner.guesses.storage import is_off, is_unattended, kernel_guesses
from helpers.learner.words import Words, book, language
from helpers.widgets.view import SavedWidget, alert_html, button, display, on_enter, row, style_sheet

words = book("guess")  # what a reader sees, by name, in the learner's language: learner/words/guess.yaml
# The units that `read_number` converts, such as B and s. KINDS maps a kind of number ("memory") to its units.
_KNOWN_UNITS = {unit for units in KINDS.values() for unit in units}


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
    """Ask a question once. `guess("bytes per rank", unit="B")` is enough. helpers/learner/guesses has its true answer.

    unit: the unit of the number. kind: "memory", "traffic", "time" or "count". key: such as "08.stage2"; by default
    made from the text. choices: texts of which the learner chooses one. order: texts, shown shuffled, that they put in
    order. between: ask for two numbers, a range. default: the answer in an unattended run, where no learner is present
    because a program runs the notebook (RANKS_UNATTENDED=1); None for "no idea". path: the progress file.

    Never raises for a learner. In an unattended run it raises ValueError for a question that is not well formed.
    """
    question = make_question(text, unit=unit, kind=kind, key=key, choices=choices, order=order, between=between)
    if question.wrong and is_unattended():  # wrong: why it is not well formed, or ""
        raise ValueError(question.wrong)
    return GuessView(question, default=default, path=path)


class GuessView(SavedWidget, ipywidgets.VBox):
    """What `guess` returns. Without a front end: `.answer("7 B")`, `.no_idea()`, then `.value` and `.text`.

    A saved notebook keeps the question alone. What the learner answered stays in their progress file.
    """

    def __init__(self, question: Question, *, default: Any = None, path: str | os.PathLike | None = None) -> None:
        self.question, self._default = question, default
        self.problem, self.repeated = "", ""  # messages: what cannot be read, and that a second answer does not count
        self._guesses = kernel_guesses(path)  # the questions asked and the answers given in this kernel
        self._guesses.asked[question.key] = question
        self._guesses.listen(question.key, self)  # an answer to the question calls `refresh`
        self.prompt, self.feedback = ipywidgets.HTML(), ipywidgets.HTML()
        self.controls = GuessControls(question, on_answer=self.answer, on_none=self.no_idea)
        super().__init__([style_sheet("guess"), self.prompt, self.controls, self.feedback])
        self.add_class("rr-guess")
        self.refresh()

    @property
    def value(self) -> Any:
        """The first answer: a number in the question's unit, two, a choice, a list; None without one."""
        stored = self._guesses.answer(self.question.key)
        if stored is None:
            return self._default if is_unattended() else None
        return stored.value

    @property
    def is_open(self) -> bool:
        """Whether the question waits for an answer. None does where guesses are off, or in an unattended run."""
        return not is_off() and not is_unattended() and self._guesses.answer(self.question.key) is None

    def answer(self, given: Any) -> None:
        """Store the answer, unless there is one already. What cannot be read gives a message."""
        try:
            value = read_guess(self.question, given)
        except (ValueError, TypeError) as error:
            self.problem = str(error)
            return self.refresh()
        return self._store(value)

    def no_idea(self) -> None:
        """Store "no idea", which is an answer like any other."""
        self._store(None)

    def _store(self, value: Any) -> None:
        """Store an answer, and say so where it is a second one, which does not count."""
        before = self._guesses.answer(self.question.key)
        self.repeated = "" if before is None else words("second", value=value_text(self.question, value))
        # The progress file and the folder that a class of learners shares ("box") may refuse the answer: `problem` and
        # `reason` say why, and are "" where nothing went wrong. The first result is the stored answer.
        _, problem, reason = self._guesses.take(self.question, value)
        self.problem = " ".join(filter(None, [problem, words("no_box", reason=reason) if reason else ""]))
        self.refresh()

    def refresh(self) -> None:
        """Show the question and what was answered so far."""
        text = inline(self.question.text.in_())
        self.prompt.value = f'<p class="rr-question">{text}</p>'
        display(self.controls, self.is_open)
        # A second answer does not count, and "rr-second" says so.
        classes = {"rr-said": self._sentence, "rr-second": self.repeated}  # CSS class of a paragraph -> its text
        shown = "".join(
            f'<p class="{name}" aria-live="polite">{escape(text)}</p>' for name, text in classes.items() if text
        )
        alerts = alert_html(self.problem) + alert_html(self._wrong)
        self.feedback.value = shown + alerts

    @property
    def text(self) -> str:
        """What is shown, as plain text."""
        options = [one.in_() for one in self.question.options]
        lines = [self.question.text.in_(), *options, self._sentence, self.repeated, self.problem, self._wrong]
        return "\n".join(line for line in lines if line)

    @property
    def _wrong(self) -> str:
        """That the question is not well formed; "" where it is."""
        return words("ask_author", wrong=self.question.wrong) if self.question.wrong else ""

    @property
    def _sentence(self) -> str:
        """What was answered, or that guesses are off; "" while an answer is awaited."""
        stored = self._guesses.answer(self.question.key)
        if stored is not None:
            has_value = stored.value is not None
            return words("kept", value=value_text(self.question, stored.value)) if has_value else words("kept_none")
        return words("is_off") if is_off() else ""

    def __repr__(self) -> str:
        return f"[guess] {self.question.key}: {self.question.text.en}"


class GuessControls(ipywidgets.VBox):
    """One or two text fields, radio buttons, or buttons that are pressed in order; then "my guess" and "no idea".

    All of it works by keyboard. on_answer: called with what was typed or chosen. on_none: called for "no idea".
    """

    def __init__(self, question: Question, *, on_answer: Callable[[Any], None], on_none: Callable[[], None]) -> None:
        self._question = question
        self.fields: list[ipywidgets.Text] = []
        self.pressed: list[int] = []  # the options of an order, by index, as they were pressed
        self.send_button = button(lambda: on_answer(self.given), words("guess"), style="primary")
        self.none_button = button(on_none, words("no_idea"))
        self._on_answer = on_answer
        make = {"number": self._number, "between": self._between, "choice": self._choice, "order": self._order}
        super().__init__(make[question.form]())

    @property
    def given(self) -> Any:
        """What is typed or chosen at the moment."""
        if self._question.form == "choice":
            return self.radio.value
        if self._question.form == "order":
            return [self._question.options[index].en for index in self.pressed]
        texts = [field.value for field in self.fields]
        return texts if self._question.form == "between" else texts[0]

    def _number(self) -> list[ipywidgets.Widget]:
        """A text field."""
        return [row(self._field("placeholder"), self._unit(), self.send_button, self.none_button)]

    def _between(self) -> list[ipywidgets.Widget]:
        """Two text fields."""
        low, high = self._field("lowest"), self._field("highest")
        between = ipywidgets.HTML(words("between_and"))
        return [row(low, between, high, self._unit(), self.send_button, self.none_button)]

    def _choice(self) -> list[ipywidgets.Widget]:
        """A radio button for each option, in the learner's language; its value is the English text."""
        pairs = [(one.in_(), one.en) for one in self._question.options]
        self.radio = ipywidgets.RadioButtons(options=pairs, value=None, layout={"width": "auto", "margin": "2px 14px"})
        return [self.radio, row(self.send_button, self.none_button)]

    def _order(self) -> list[ipywidgets.Widget]:
        """A button for each option, and one to start again."""
        self.items = [button(lambda index=index: self._press(index)) for index in range(len(self._question.options))]
        self.again_button = button(self._start_again, words("start_again"))
        how = ipywidgets.HTML(f'<p class="rr-first">{words("in_order")}</p>')
        below = row(self.send_button, self.again_button, self.none_button)
        self._name_items()
        return [how, row(*self.items), below]

    def _press(self, index: int) -> None:
        """The learner presses an option, which becomes the next one of the order."""
        if index not in self.pressed:
            self.pressed.append(index)
        self._name_items()
        remaining = [item for item in self.items if not item.disabled]
        (remaining[0] if remaining else self.send_button).focus()

    def _start_again(self) -> None:
        """Take back all options of the order."""
        self.pressed.clear()
        self._name_items()
        self.items[0].focus()

    def _name_items(self) -> None:
        """Write on each option its place in the order, once it was pressed."""
        for index, item in enumerate(self.items):
            text = self._question.options[index].in_()
            item.disabled = index in self.pressed
            item.description = f"{self.pressed.index(index) + 1} · {text}" if item.disabled else text

    def _field(self, placeholder: str) -> ipywidgets.Text:
        """A text field in which Enter sends the answer."""
        field = ipywidgets.Text(placeholder=words(placeholder), layout=ipywidgets.Layout(width="150px"))
        on_enter(field, lambda: self._on_answer(self.given))
        self.fields.append(field)
        return field

    def _unit(self) -> ipywidgets.HTML:
        """The unit behind the text fields."""
        return ipywidgets.HTML(f'<span style="margin-right:14px">{self._question.unit}</span>')


def read_guess(question: Question, given: Any) -> Any:
    """The value of an answer: a number in the question's unit, two of them, one of the choices, or a list in order.

    Raises ValueError, with a message in the learner's language, where the answer cannot be read.
    """
    reader = {"number": _number, "between": _range, "choice": _choice, "order": _order}[question.form]
    return reader(question, given)


def value_text(question: Question, value: Any, lang: str | None = None) -> str:
    """An answer as it is displayed."""
    if value is None:
        return words("no_idea", lang)
    if question.form == "choice":
        return _option(question, value).in_(lang)
    if question.form == "order":
        return " → ".join(_option(question, one).in_(lang) for one in value)
    return format_answer(value, question.unit)


def _number(question: Question, given: Any) -> float:
    """The number in "7", "7 bytes", "64 MB", "6.5e7" or 7.0, in the unit of the question."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        given = repr(given)
    text, unit = str(given).strip(), _base_unit(question.unit)
    example = f"12.3 {question.unit}".strip()
    value = read_number(_without_unit(text, question.unit), unit, language(), example)
    return value / FACTORS[unit]  # `read_number` gives base units: bytes, seconds


_BETWEEN = r"\s*(?:–|—|~| to | and |到|至|,\s+|;)\s*"  # what may stand between the two numbers of a range


def _range(question: Question, given: Any) -> list[float]:
    """The two numbers of "3 to 5", "3–5" or (3, 5)."""
    parts = re.split(_BETWEEN, given) if isinstance(given, str) else list(given)
    low, high = (_number(question, part) for part in (*parts, "", "")[:2])  # "": no number, so _number raises
    if low > high:
        raise ValueError(words("wrong_way"))
    return [low, high]


def _choice(question: Question, given: Any) -> str:
    """The English text of an option that is given in any language."""
    known = {text: one.en for one in question.options for text in (one.en, one.zh)}
    if given is None:
        raise ValueError(words("choose_first"))
    if given not in known:
        raise ValueError(words("unknown_choice", given=given, known="; ".join(one.in_() for one in question.options)))
    return known[given]


def _order(question: Question, given: Any) -> list[str]:
    """The options in the order given, as texts or by their displayed numbers: "3 1 2"."""
    shown = question.options
    if isinstance(given, str) and re.fullmatch(r"[\d\s,.;>→-]+", given):  # only numbers and what may separate them
        given = [int(number) for number in re.findall(r"\d+", given)]
    parts = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    texts = [shown[one - 1].en if isinstance(one, int) and 0 < one <= len(shown) else one for one in parts]
    english = {text: one.en for one in shown for text in (one.en, one.zh)}
    texts = [english.get(text) for text in texts]
    if sorted(map(str, texts)) != sorted(one.en for one in shown):
        raise ValueError(words("order_first", count=len(shown)))
    return texts


def _base_unit(unit: str) -> str:
    """The known unit with which `unit` begins, such as "B" of "B per parameter"; "" where it is none, as in "P"."""
    head = unit if unit in _KNOWN_UNITS else unit.split(" ")[0].split("/")[0]
    return head if head in _KNOWN_UNITS else ""


def _without_unit(text: str, unit: str) -> str:
    """The number without what only this question has in its unit: "per parameter" of "B per parameter"."""
    ending = unit.removeprefix(_base_unit(unit)).strip()
    return text[: len(text) - len(ending)].strip() if text.lower().endswith(ending.lower()) else text


def known_declaration(key: str) -> Declaration | None:
    """The question with this key and its true answer, as helpers/learner/guesses declares them; None without one."""
    try:
        return declaration(key)
    except ValueError:  # the file of answers is damaged; its own tests report that
        return None


def _option(question: Question, english: str) -> Words:
    """The option of a question in all languages, found by its English text."""
    return next((one for one in question.options if one.en == english), Words.of(english))


def error_sentence(form: str, value: Any, truth: Any) -> str:
    """A sentence on how far an answer is from the truth; "" where there is nothing to compare.

    form: "number", "between" (a range), "choice" or "order".
    """
    error = compare(form, value, truth)
    if error is None:
        return ""
    if form == "choice":
        return words("right" if error.is_right else "not_right")
    if form == "order":
        return words("right" if error.is_right else "other_order")
    if form == "between":
        where = "inside" if error.is_right else "outside_low" if value[1] < truth else "outside_high"
        return words(where, off=how_far_off(geometric_middle(*value), truth, language()))
    return words("right") if error.is_right else words("off", off=how_far_off(value, truth, language()))
