"""Provides QuizView, the quiz in a notebook: interview cards, the learner's answers, and when each card comes back.

A card is an interview question with its answer, and the bank is all cards of the course. In the form "folded" the
learner answers aloud, unfolds the card's answer and rates their own; a "choice" has up to five options, and a "number"
asks for one. Quiz chooses the cards and records the answers; QuizView shows them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from itertools import zip_longest
from typing import Any

import ipywidgets

from helpers.interview import load_all
from helpers.interview.card_html import card_html
from helpers.interview.cards import LEVELS, Card, topic_name, topic_of
from helpers.interview.cards import words as quiz_words  # texts by name: learner/words/quiz.yaml
from helpers.interview.drills import Now
from helpers.interview.quiz import FORMS, Answer, Quiz, QuizQuestion, list_topics
from helpers.widgets.dials import choice
from helpers.widgets.interview_view import (
    InterviewView,
    bilingual_options,
    draw_buttons,
    language_dial,
    question_html,
    set_dial_widths,
)
from helpers.widgets.view import Page, alert_html, button, display, feedback_html, on_enter, row

LETTERS = "abcde"  # of the options of a multiple choice


class QuizView(InterviewView):
    """Cards of the bank, what is due first. Without a front end: `.reveal()`, `.answer("good")`, `.next()`, `.text`.

    topics, levels, language, form: where the dials start; one topic and one level, or none for all. path: the progress
    file, if it is not the one in the home. seed: of the random order. now: a function that returns the time, for tests.
    cards: instead of the whole bank.
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
        for dial in self.dials:
            dial.observe(self._begin, names="value")
        self._begin()

    # -- parts ---------------------------------------------------------------------------------------------------------
    def _make_dials(self, topic: str, level: str, language: str, form: str) -> None:
        """Make the dials, which start at these values."""
        # A learner may also name a chapter, "03_ddp", whose topic is "ddp".
        self.topic = choice(bilingual_options(list_topics(self._cards), topic_name), topic_of(topic), "topic · 主题")
        self.level = choice(bilingual_options(LEVELS), level, "level · 级别")
        self.language = language_dial(language)
        forms = [(f"{name} · {quiz_words(name, 'zh')}", name) for name in ("mixed", *FORMS)]
        self.form = choice(forms, form, "form · 题型")
        self.dials = (self.topic, self.level, self.form, self.language)
        set_dial_widths(self.dials)

    def _make_controls(self) -> None:
        """Make all parts but the dials."""
        self.progress, self.prompt, self.feedback, self.solution, self.note = (ipywidgets.HTML() for _ in range(5))
        self.links = Page()
        self.show_button = button(self.reveal, style="primary")
        self.skip_button = button(self.skip)
        self.next_button = button(self.next, style="primary")
        self.ahead_button = button(self.ahead)
        self.option_buttons = [button(lambda letter=letter: self.answer(letter)) for letter in LETTERS]
        for each in self.option_buttons:
            each.add_class("rr-option")
        self.field = ipywidgets.Text(layout=ipywidgets.Layout(width="230px"))
        self.field.style.description_width = "initial"
        on_enter(self.field, self._submit)
        self.check_button = button(self._submit, style="primary")
        self.unit = ipywidgets.HTML()

    def _arranged(self) -> list[ipywidgets.Widget]:
        """All parts, from the top."""
        options = ipywidgets.VBox(self.option_buttons, layout=ipywidgets.Layout(margin="2px 12px", max_width="720px"))
        self._options_box, self._number_box = options, row(self.field, self.unit, self.check_button)
        self._dial_box = row(*self.dials)
        self._dial_box.layout.max_width = "620px"  # two beside each other
        below = row(self.show_button, self.next_button, self.skip_button, self.ahead_button)
        shown = [self.progress, self.prompt, options, self._number_box, self.feedback, self.solution, self.links]
        return [self._dial_box, *shown, self._make_rating_row(self.answer), below, self.note]

    # -- actions -------------------------------------------------------------------------------------------------------
    def reveal(self) -> None:
        """Show the answer of a folded card, so that the learner can rate their own. Other cards stay as they are."""
        if self.question is not None and self.question.form == "folded":
            self._is_open = True
            self._draw(self.rating_buttons["good"])

    def answer(self, given: str) -> Answer | None:
        """Answer with a rating, a letter or a number. For what cannot be read: None, and a message."""
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
        """Take the next card, once this one is answered."""
        if self.given is not None:
            self._take()

    def skip(self) -> None:
        """Take another card; nothing is recorded."""
        if self.given is None and self.question is not None:
            self.quiz.skip()
        self._take()

    def ahead(self) -> None:
        """Continue with cards that are not due yet."""
        self._begin(ahead=True)

    def _submit(self) -> None:
        """Answer with what stands in the text field."""
        self.answer(self.field.value)

    # -- display -------------------------------------------------------------------------------------------------------
    def _begin(self, change: object = None, *, ahead: bool = False) -> None:
        """Start a quiz with the dials' values. Earlier answers are in the progress file already."""
        topics, levels = ([dial.value] if dial.value else [] for dial in (self.topic, self.level))  # [] means all
        wanted = {"topics": topics, "levels": levels, "form": self.form.value, "language": self.language.value}
        # given: the learner's Answer to the question. problem: why there is no quiz, or why an answer cannot be read.
        self.quiz, self.question, self.given, self.problem = None, None, None, ""
        try:
            self.quiz = Quiz(self._cards, **wanted, ahead=ahead, **self._options)
        except ValueError as error:
            self.problem = str(error)
            return self._draw()
        return self._take(focus=False)

    def _take(self, *, focus: bool = True) -> None:
        """Show the quiz's next question, which is None at the end. focus: whether a control takes the keyboard."""
        self.question: QuizQuestion | None = self.quiz.question if self.quiz else None
        self.given, self.problem, self._is_open, self.field.value = None, "", False, ""
        self._draw(self._first_control if focus else None)

    @property
    def _first_control(self) -> ipywidgets.Widget:
        """The control with which the learner answers the question, or goes on at the end of the quiz."""
        if self.question is None:
            return self.ahead_button
        return {"folded": self.show_button, "choice": self.option_buttons[0], "number": self.field}[self.question.form]

    @property
    def sentence(self) -> str:
        """How many cards were asked, right, and remain; at the end of the quiz, how many are due tomorrow."""
        if self.quiz is None:
            return ""
        counts = {"asked": self.quiz.asked, "right": self.quiz.right, "remaining": self.quiz.remaining}
        if self.question is not None:
            return self._text("quiz.asked", **counts)
        summary = self.quiz.summary()  # its `weakest` is a topic, or "" where no answer was wrong
        topic = topic_name(summary.weakest, self.language.value)
        weakest = self._text("quiz.weakest", topic=topic) if topic else ""
        return self._text("quiz.over", **counts, due=summary.due_tomorrow) + weakest

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        lines = [self.sentence, self.problem]
        if self.question is not None:
            lines += [self._heading, self.question.text]
            lines += [f"{letter}) {option}" for letter, option in self._lettered_options]
        lines += [self.given.sentence if self.given else "", self.quiz.note if self.quiz else ""]
        return "\n".join(line for line in lines if line)

    @property
    def _heading(self) -> str:
        """The level and topic of the card, and whether it is new to the learner."""
        card, language = self.question.card, self.language.value
        level, topic = quiz_words(card.level, language), topic_name(card.topic, language)
        new = self._text("quiz.new") if self.question.is_new else ""
        return self._text("quiz.meta", level=level, topic=topic, new=new)

    @property
    def _lettered_options(self) -> list[tuple[str, str]]:
        """Letter and text of each option. A question may have fewer options than there are letters, or none."""
        return list(zip(LETTERS, self.question.options if self.question else (), strict=False))

    def _draw(self, focus: ipywidgets.Widget | None = None) -> None:
        """Show the state of the quiz; `focus` is the control that then takes the keyboard's focus."""
        question = self.question
        self.progress.value = f'<p class="rr-meta">{escape(self.sentence)}</p>'
        self.prompt.value = question_html(self._heading, question.text) if question else ""
        self.feedback.value = alert_html(self.problem)
        if self.given is not None:
            self.feedback.value = feedback_html(self.given.sentence, is_right=self.given.passed)
        # The card's own answer may be seen once the question is answered, or the learner has unfolded it. What
        # was asked may be a variant of the card's question, which then stands above the answer.
        is_answered = question is not None and (self.given is not None or self._is_open)
        self._draw_answer(question.card if is_answered else None, question=question.text if question else "")
        # The quiz's note says that the progress file is damaged or cannot be written; "" otherwise.
        self.note.value = alert_html(self.quiz.note if self.quiz else "")
        self._draw_controls(question.form if question and self.given is None else "")
        if focus is not None:
            focus.focus()

    def _draw_controls(self, form: str) -> None:
        """Show the controls that a question of this form needs; "" for a question that is answered, or for none."""
        asks_rating = form == "folded"
        shown = {
            self.show_button: ("show", asks_rating and not self._is_open),
            self.skip_button: ("skip", bool(form)),
            self.next_button: ("quiz.next", self.given is not None),
            self.ahead_button: ("quiz.ahead", self.quiz is not None and self.question is None),
            self.check_button: ("quiz.check", form == "number"),
        }
        draw_buttons({each: (self._text(name), is_shown) for each, (name, is_shown) in shown.items()})
        self._draw_rating_row(asks_rating and self._is_open)
        # A button per option; the other buttons get the text "" and are hidden.
        texts = [f"{letter})  {_plain(option)}" for letter, option in self._lettered_options]
        draw_buttons({each: (text, bool(text)) for each, text in zip_longest(self.option_buttons, texts, fillvalue="")})
        self.unit.value = (
            f'<span style="font-size:14px">{escape(self.question.unit)}</span>' if form == "number" else ""
        )
        self.field.description = self._text("quiz.answer")
        display(self._options_box, form == "choice")
        display(self._number_box, form == "number")

    @property
    def saved_html(self) -> str:
        """The bank's first card, folded."""
        first = next((card for card in self._cards if self.topic.value in ("", card.topic)), self._cards[0])
        count = f"Cards in the bank: {len(self._cards)}, topics: {len(list_topics(self._cards))}. One of them:"
        return f"<div><p>{count}</p>{card_html(first)}</div>"


def _first(names: Iterable[str] | str) -> str:
    """One name, as a dial can show it. ValueError for several."""
    names = (names,) if isinstance(names, str) else tuple(names)
    if len(names) > 1:
        raise ValueError(f"the dial holds one name, this is {', '.join(names)}; give one, or none for all")
    return names[0] if names else ""


def _plain(text: str) -> str:
    """The text without the markup for code and bold, because a button shows no markup."""
    return text.replace("`", "").replace("**", "")
