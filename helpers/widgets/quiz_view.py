"""The quiz in a notebook: a card, the answer you give, what it is right or wrong about, and when it comes back."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from typing import Any

import ipywidgets

from helpers.interview import load_all
from helpers.interview.cards import LEVELS, Card, topic_of
from helpers.interview.deck import FORMS, topics
from helpers.interview.links import link
from helpers.interview.render import card_html
from helpers.interview.session import Answer, Question, Quiz
from helpers.interview.stopwatch import Now
from helpers.interview.words import RATINGS, say, topic_name
from helpers.widgets import sitting_parts as parts
from helpers.widgets.dials import choice
from helpers.widgets.sitting_view import SittingView

LETTERS = "abcde"


class QuizView(SittingView):
    """Cards of the bank, what is due first. Without a front end: `.reveal()`, `.answer("good")`, `.next()`, `.text`.

    topics, levels, language, form: where the dials start, one topic or level, or none for all. path: of the progress
    file, if not the one in the home. seed, now: as in Quiz. cards: instead of the whole bank.
    """

    TEXT = "[widget] QuizView: interview cards with folded answers, choices and numbers; what is due comes first"

    def __init__(
        self,
        topics: Iterable[str] | str = (),
        levels: Iterable[str] | str = (),
        language: str | None = None,
        form: str = "mixed",
        *,
        path: str | os.PathLike | None = None,
        seed: int | None = None,
        now: Now | None = None,
        cards: Iterable[Card] | None = None,
    ) -> None:
        self._cards = load_all() if cards is None else tuple(cards)
        self._options: dict[str, Any] = {"path": path, "seed": seed, "now": now}
        self._make_dials(_first(topics), _first(levels), language, form)
        self._make_controls()
        super().__init__(self._arranged())
        self.add_class("rr-sitting")
        for dial in self.dials:
            dial.observe(self._begin, names="value")
        self._begin()

    # -- what is there -------------------------------------------------------------------------------------------------
    def _make_dials(self, topic: str, level: str, language: str, form: str) -> None:
        self.topic = choice(parts.both(topics(self._cards), topic_name), topic_of(topic), "topic · 主题")
        self.level = choice(parts.both(LEVELS), level, "level · 级别")
        self.language = parts.languages(language)
        forms = [(f"{name} · {say(name, 'zh')}", name) for name in ("mixed", *FORMS)]
        self.form = choice(forms, form, "form · 题型")
        self.dials = (self.topic, self.level, self.form, self.language)
        for dial in self.dials:
            dial.layout.width, dial.style.description_width = "272px", "104px"

    def _make_controls(self) -> None:
        self.progress, self.asked, self.said, self.solution, self.note = (ipywidgets.HTML() for _ in range(5))
        self.links = parts.Page()
        self.show_button = parts.button(self.reveal, style="primary")
        self.skip_button = parts.button(self.skip)
        self.next_button = parts.button(self.next, style="primary")
        self.ahead_button = parts.button(self.ahead)
        self.rating_buttons = {name: parts.button(lambda name=name: self.answer(name)) for name in RATINGS}
        wide = {"width": "auto"}
        self.option_buttons = [parts.button(lambda k=key: self.answer(k), **wide) for key in LETTERS]
        for each in self.option_buttons:
            each.add_class("rr-option")
        self.field = ipywidgets.Text(layout=ipywidgets.Layout(width="230px"))
        self.field.style.description_width = "initial"
        self.field.on_msg(lambda _, content, __: content.get("event") == "submit" and self._submit())
        self.check_button = parts.button(self._submit, style="primary")
        self.unit = ipywidgets.HTML()

    def _arranged(self) -> list[ipywidgets.Widget]:
        options = ipywidgets.VBox(self.option_buttons, layout=ipywidgets.Layout(margin="2px 12px", max_width="720px"))
        self._options_box, self._number_box = options, parts.row(self.field, self.unit, self.check_button)
        self._rating_label = ipywidgets.HTML()
        self._rating_box = parts.row(self._rating_label, *self.rating_buttons.values())
        self._dial_box = parts.row(*self.dials)
        self._dial_box.layout.max_width = "620px"  # two beside each other
        below = parts.row(self.show_button, self.next_button, self.skip_button, self.ahead_button)
        shown = [self.progress, self.asked, options, self._number_box, self.said, self.solution, self.links]
        return [parts.style(), self._dial_box, *shown, self._rating_box, below, self.note]

    # -- what can be done ----------------------------------------------------------------------------------------------
    def reveal(self) -> None:
        """Show the answer of a folded card, to be rated. Of a card in another form: nothing."""
        if self.question is not None and self.question.form == "folded":
            self._is_open = True
            self._draw(self.rating_buttons["good"])

    def answer(self, given: str) -> Answer | None:
        """A rating, a letter or a number. What cannot be read is told, and the question stays: then None."""
        if self.given is not None:
            return None
        try:
            self.given = self.quiz.answer(given)
        except ValueError as error:
            self.problem = str(error)
            self._draw(self.field)
            return None
        self.problem = ""
        self._draw(self.next_button)
        return self.given

    def next(self) -> None:
        """The next card, once this one is answered."""
        if self.given is not None:
            self._take()

    def skip(self) -> None:
        """Another card; nothing is noted."""
        if self.given is None and self.question is not None:
            self.quiz.skip()
        self._take()

    def ahead(self) -> None:
        """Go on with cards that are not due yet."""
        self._begin(ahead=True)

    def _submit(self) -> None:
        self.answer(self.field.value)

    # -- what is shown -------------------------------------------------------------------------------------------------
    def _begin(self, change: object = None, *, ahead: bool = False) -> None:
        """A sitting with the dials as they stand. Answers given so far are in the progress file."""
        wanted = {"topics": [self.topic.value] if self.topic.value else []}
        wanted |= {"levels": [self.level.value] if self.level.value else [], "form": self.form.value}
        self.quiz, self.question, self.given, self.problem = None, None, None, ""
        try:
            self.quiz = Quiz(self._cards, **wanted, language=self.language.value, ahead=ahead, **self._options)
        except ValueError as error:
            self.problem = str(error)
            return self._draw()
        return self._take(focus=False)

    def _take(self, *, focus: bool = True) -> None:
        self.question: Question | None = self.quiz.question if self.quiz else None
        self.given, self.problem, self._is_open, self.field.value = None, "", False, ""
        self._draw(self._first_control if focus else None)

    @property
    def _first_control(self) -> ipywidgets.Widget:
        if self.question is None:
            return self.ahead_button
        return {"folded": self.show_button, "choice": self.option_buttons[0], "number": self.field}[self.question.form]

    @property
    def sentence(self) -> str:
        """How the sitting stands; at its end what is due tomorrow."""
        if self.quiz is None:
            return ""
        counts = {"asked": self.quiz.asked, "right": self.quiz.right, "remaining": self.quiz.remaining}
        if self.question is not None:
            return self._say("quiz.asked", **counts)
        summary = self.quiz.summary()
        weakest = topic_name(summary.weakest, self.language.value)
        weakest = self._say("quiz.weakest", topic=weakest) if weakest else ""
        return self._say("quiz.over", **counts, due=summary.due_tomorrow) + weakest

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        lines = [self.sentence, self.problem]
        if self.question is not None:
            lines += [self._meta, self.question.text]
            lines += [f"{letter}) {option}" for letter, option in zip(LETTERS, self.question.options, strict=False)]
        lines += [self.given.sentence if self.given else "", self.quiz.note if self.quiz else ""]
        return "\n".join(line for line in lines if line)

    @property
    def _meta(self) -> str:
        card, new = self.question.card, self._say("quiz.new") if self.question.is_new else ""
        language = self.language.value
        return self._say("quiz.meta", level=say(card.level, language), topic=topic_name(card.topic, language), new=new)

    @property
    def _is_answered(self) -> bool:
        """Whether the card's own answer may be seen."""
        return self.question is not None and (self.given is not None or self._is_open)

    def _draw(self, focus: ipywidgets.Widget | None = None) -> None:
        language, question = self.language.value, self.question
        self.progress.value = f'<p class="rr-meta">{escape(self.sentence)}</p>'
        self.asked.value = parts.question_html(self._meta, question.text) if question else ""
        right = self.given is not None and self.given.passed
        self.said.value = parts.alert_html(self.problem)
        if self.given is not None:
            self.said.value = parts.said_html(self.given.sentence, is_right=right)
        self.solution.value = (
            parts.answer_html(question.card, language, asked=question.text) if self._is_answered else ""
        )
        found = [link(question.card, language=language)] if self._is_answered else []
        self.links.show(parts.links_html("shown", found, language) if found else "")
        self.note.value = parts.alert_html(self.quiz.note if self.quiz else "")
        self._draw_controls(question.form if question and self.given is None else "")
        if focus is not None:
            focus.focus()

    def _draw_controls(self, form: str) -> None:
        """Those that the question at hand needs. form: of a question not answered yet, or ""."""
        names = ("show", "skip", "quiz.next", "quiz.ahead", "quiz.check")
        for each, name in zip(self._named_buttons, names, strict=True):
            each.description = self._say(name)
        for name, each in self.rating_buttons.items():
            each.description = say(name, self.language.value)
        options = self.question.options if form == "choice" else ()
        for number, each in enumerate(self.option_buttons):
            parts.display(each, number < len(options))
            each.description = f"{LETTERS[number]})  {_plain(options[number])}" if number < len(options) else ""
        self._rating_label.value = f'<span style="font-size:14px;margin-right:8px">{self._say("rate")}</span>'
        self.unit.value = (
            f'<span style="font-size:14px">{escape(self.question.unit)}</span>' if form == "number" else ""
        )
        self.field.description = self._say("quiz.answer")
        parts.display(self._options_box, form == "choice")
        parts.display(self._number_box, form == "number")
        parts.display(self._rating_box, form == "folded" and self._is_open)
        parts.display(self.show_button, form == "folded" and not self._is_open)
        parts.display(self.next_button, self.given is not None)
        parts.display(self.skip_button, bool(form))
        parts.display(self.ahead_button, self.quiz is not None and self.question is None)

    @property
    def _named_buttons(self) -> tuple[ipywidgets.Button, ...]:
        return self.show_button, self.skip_button, self.next_button, self.ahead_button, self.check_button

    @property
    def kept(self) -> str:
        """The bank's first card, folded."""
        first = next((card for card in self._cards if self.topic.value in ("", card.topic)), self._cards[0])
        count = f"Cards in the bank: {len(self._cards)}, topics: {len(topics(self._cards))}. One of them:"
        return f"<div><p>{count}</p>{card_html(first)}</div>"


def _first(names: Iterable[str] | str) -> str:
    """One name, as a dial can show it. ValueError for several."""
    names = (names,) if isinstance(names, str) else tuple(names)
    if len(names) > 1:
        raise ValueError(f"the dial holds one name, this is {', '.join(names)}; give one, or none for all")
    return names[0] if names else ""


def _plain(text: str) -> str:
    """A button shows no markup."""
    return text.replace("`", "").replace("**", "")
