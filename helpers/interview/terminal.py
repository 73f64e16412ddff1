"""Plays the quiz in a terminal: `TerminalScreen` writes and reads lines, `QuizPlayer` asks and takes answers.

`python -m helpers quiz` starts it. Paragraphs fit the terminal's width, and there is colour only where a terminal shows
it. `terminal_interviews.py` plays drills, mock interviews and rounds on the same screen.

A card is a question with its answer. A `Quiz` chooses cards: its `question` is the present one, and `quiz.answer(text)`
judges what was typed and goes on to the next. A question has a form: "choice", "number" or "folded"; a folded card is
answered in the head, unfolded and rated by the learner. `words(key, language, **values)` is a sentence of the quiz.
"""

from __future__ import annotations

import os
import re
import shutil
import sys

from helpers.interview.answers import LETTERS
from helpers.interview.card_html import card_link
from helpers.interview.cards import Card, has_number, topic_name, words
from helpers.interview.quiz import Answer, Quiz, QuizQuestion
from helpers.learner.words.wrapping import wrap

WIDEST = 88  # columns of text, also where the terminal has more, because longer lines are hard to read
STYLES = {"bold": "1", "quiet": "2", "right": "32", "wrong": "31", "code": "36"}  # -> number of the ANSI escape
MORE = ("m", "more", "更多")
SKIP = ("s", "skip", "跳过")


class Quit(Exception):
    """The learner wants to stop: q, Ctrl-D, Ctrl-C, or the end of what was piped in."""


class Skipped(Exception):
    """The learner wants another card."""


# -- lines -----------------------------------------------------------------------------------------------------------
class TerminalScreen:
    """Standard input and output in one language. colour: None asks the terminal and the variable NO_COLOR."""

    def __init__(self, language: str, colour: bool | None = None):
        self.language = language
        self.colour = _wants_colour() if colour is None else colour
        for stream in (sys.stdin, sys.stdout):  # a terminal that cannot show a character shows a question mark
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")

    @property
    def columns(self) -> int:
        """The present width of the terminal; at most 88."""
        return max(24, min(shutil.get_terminal_size().columns, WIDEST))  # 24, so that a word still fits

    def say(self, key: str, style: str = "", /, **values: object) -> None:
        """Print the quiz's sentence of this key as a paragraph."""
        self.text(words(key, self.language, **values), style=style)

    def text(self, text: str, *, first: str = "", style: str = "") -> None:
        """Print wrapped paragraphs; `first` stands before the first line, and the others are indented as much."""
        for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
            if number:
                self.line()
            for line in wrap(self.marked(paragraph), self.columns, first=" " * len(first) if number else first):
                self.line(line, style)

    def line(self, line: str = "", style: str = "") -> None:
        """Print one line as it is."""
        print(self.styled(line, style) if line else "")

    def block(self, text: str) -> None:
        """Print lines that are laid out already, such as a program. A line that is too long continues indented."""
        for line in text.splitlines():
            indent = line[: len(line) - len(line.lstrip())]
            for part in wrap(line, self.columns, first=indent, rest=indent + "  ", cut=False):  # long words stay
                self.line(part)

    def rule(self) -> None:
        """Print a horizontal line."""
        self.line("─" * min(self.columns, 60), "quiet")

    def heading(self, *parts: str) -> None:
        """Print a horizontal line, then these parts on one line."""
        self.line()
        self.rule()
        self.line(" · ".join(parts), "quiet")
        self.line()

    def ask(self, prompt: str) -> str:
        """What is typed after a prompt, stripped. Raises Quit for q and at the end of the input."""
        *lines, last = wrap(prompt, self.columns - 1)
        try:
            for line in lines:
                self.line(line, "bold")
            typed = input(self.styled(last, "bold") + " ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            raise Quit from None
        if not sys.stdin.isatty():
            print()  # the answer comes from a pipe, so no Enter has ended the line of the prompt
        if typed.lower() in ("q", "quit", "exit", "退出"):
            raise Quit
        return typed

    def marked(self, text: str) -> str:
        """`code` and **bold** as the terminal can show them: coloured, or code in its marks and bold without."""
        if not self.colour:
            return re.sub(r"\*\*(.+?)\*\*", r"\1", text, flags=re.DOTALL)
        return self.coded(re.sub(r"\*\*(.+?)\*\*", self.styled(r"\1", "bold"), text, flags=re.DOTALL))

    def coded(self, text: str) -> str:
        """`code` coloured and without its marks, where there is colour; asterisks stay what they are."""
        return re.sub(r"`([^`]+)`", self.styled(r"\1", "code"), text) if self.colour else text

    def styled(self, text: str, style: str) -> str:
        """The text in a style of STYLES, where there is colour."""
        if not self.colour or not style:
            return text
        on, off = f"\x1b[{STYLES[style]}m", "\x1b[0m"
        return on + text.replace(off, off + on) + off  # after a style inside the text, this one goes on


def _wants_colour() -> bool:
    """Whether standard output is a terminal that shows colour, and the learner has not set NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "", None)


# -- the quiz --------------------------------------------------------------------------------------------------------
class QuizPlayer:
    """Plays a quiz on a screen."""

    def __init__(self, quiz: Quiz, screen: TerminalScreen):
        self.quiz, self.screen = quiz, screen
        self._shown_note = ""  # the last sentence on the progress file that was printed

    def run(self) -> None:
        """Ask until the learner stops or no card is left, then show the summary."""
        self._show_note()
        if self.quiz.question is None:
            self.screen.say("nothing_due")
            return
        self.screen.say("welcome", count=self.quiz.remaining)
        try:
            while self.quiz.question is not None:
                self._play_card(self.quiz.question)
        except Quit:
            pass
        show_summary(self.quiz, self.screen)

    def _play_card(self, question: QuizQuestion) -> None:
        """Show a question, take the answer, and show how it was judged."""
        self._show(question)
        try:
            answer = self._rating(question) if question.form == "folded" else self._typed_answer(question)
        except Skipped:
            self.quiz.skip()
            return
        self._show_note()
        if question.form != "folded":  # else `_rating` has shown the answer and the result
            self._show_result(answer)
            has_shown_longer = show_answer(answer.card, self.screen, answer.form)
            if self.quiz.question is not None:
                key = "ask_next_told" if has_shown_longer else "ask_next"
                self._ask(self._word(key), answer.card, has_shown_longer=has_shown_longer)

    def _show(self, question: QuizQuestion) -> None:
        """Print where in the quiz the question is, the question, and its options if it is a choice."""
        card, screen, number = question.card, self.screen, self.quiz.asked + 1
        position = words("place", screen.language, number=number, total=self.quiz.asked + self.quiz.remaining)
        is_new = [self._word("is_new")] if question.is_new else []
        screen.heading(position, topic_name(card.topic, screen.language), self._word(card.level), *is_new)
        screen.text(question.text, style="bold")
        if question.options:
            screen.line()
        for letter, option in zip(LETTERS, question.options, strict=False):  # there are more letters than options
            screen.text(option, first=f"  {letter}) ")
        screen.line()

    def _rating(self, question: QuizQuestion) -> Answer:
        """Show the answer when Enter is pressed, then take the learner's rating. What is typed before is ignored."""
        self._ask(self._word("ask_unfold"), None, may_skip=True)
        show_answer(question.card, self.screen)
        answer = self._read_answer(self._word("ask_rating"), question.card)
        self._show_result(answer)
        return answer

    def _typed_answer(self, question: QuizQuestion) -> Answer:
        """Ask for a letter or a number."""
        prompt = words("ask_letter", self.screen.language, last=LETTERS[len(question.options) - 1])
        if question.form == "number":
            has_unit = question.unit not in ("", "x", "×")
            prompt = words("ask_number" if has_unit else "ask_count", self.screen.language, unit=question.unit)
        return self._read_answer(prompt, None)  # None: the answer is still hidden

    def _read_answer(self, prompt: str, card: Card | None) -> Answer:
        """Pass the first typed answer that can be read to the quiz, and return how it was judged.

        It prints why another one cannot be read. card: as in `_ask`.
        """
        while True:
            if typed := self._ask(prompt, card, may_skip=True):
                try:
                    return self.quiz.answer(typed)
                except ValueError as error:
                    self.screen.text(str(error))

    def _ask(self, prompt: str, card: Card | None, *, may_skip: bool = False, has_shown_longer: bool = False) -> str:
        """What is typed, after commands such as ? and m were served. Raises Skipped for s if `may_skip`.

        card: whose longer answer m shows, None while the answer is hidden.
        """
        while True:
            typed = self.screen.ask(prompt)
            if typed in ("?", "？", "help", "帮助"):
                self.screen.say("help")
            elif typed.lower() in MORE and card:
                show_more(card, self.screen, has_shown_longer=has_shown_longer)
            elif typed.lower() in MORE:
                self.screen.say("more_later")
            elif may_skip and typed.lower() in SKIP:
                raise Skipped
            else:
                return typed

    def _show_result(self, answer: Answer) -> None:
        """Print how an answer was judged."""
        self.screen.line()
        self.screen.text(answer.sentence, style="right" if answer.passed else "wrong")

    def _show_note(self) -> None:
        """Print what is wrong with the progress file, each sentence once."""
        if self.quiz.note != self._shown_note:
            self._shown_note = self.quiz.note
            if self._shown_note:
                self.screen.text(self._shown_note, style="wrong")

    def _word(self, key: str) -> str:
        """The sentence of this key in the learner's language."""
        return words(key, self.screen.language)


def show_answer(card: Card, screen: TerminalScreen, form: str = "folded") -> bool:
    """Print the 30-second answer, the usual mistake, and where it is shown.

    Returns whether the longer answer was printed too. form: as which the card was asked. The form "number" asks another
    question than the card's, so the card's question is printed as well, and the longer answer too if only that one has
    the number.
    """
    screen.line()
    if form == "number":
        screen.text(card.question.in_(screen.language), style="bold")
        screen.line()
    screen.text(card.answer.in_(screen.language))
    shows_longer = form == "number" and bool(card.longer)
    shows_longer = shows_longer and not has_number(card.predict.says, card.answer.in_(screen.language))
    if shows_longer:
        screen.line()
        screen.text(card.longer.in_(screen.language))
    if card.usual_mistake:
        screen.line()
        _show_labelled("usual_mistake", card.usual_mistake.in_(screen.language), screen)
    screen.line()
    text, address = card_link(card, "notebooks/", language=screen.language)
    screen.text(words("shown_by", screen.language, place=text), style="quiet")
    screen.line(f"  {address}", "quiet")
    screen.line()
    return shows_longer


def show_more(card: Card, screen: TerminalScreen, *, has_shown_longer: bool = False) -> None:
    """Print the longer answer, unless it was shown already, and what an interviewer asks next."""
    screen.line()
    if not has_shown_longer:
        screen.text(card.longer.in_(screen.language) if card.longer else words("no_longer", screen.language))
        screen.line()
    if card.follow_ups:
        between = words("between", screen.language)
        _show_labelled("follow_ups", between.join(text.in_(screen.language) for text in card.follow_ups), screen)
        screen.line()


def show_summary(quiz: Quiz, screen: TerminalScreen) -> None:
    """Print how many were asked, right, and due tomorrow, and the weakest topic."""
    summary = quiz.summary()
    screen.line()
    screen.rule()
    if summary.asked:
        key = "summary_hard" if summary.hard else "summary"
        screen.say(key, "bold", asked=summary.asked, right=summary.right, hard=summary.hard)
    else:
        screen.say("summary_nothing")
    screen.say("summary_due_chosen" if quiz.is_chosen else "summary_due", count=summary.due_tomorrow)
    if summary.weakest:
        screen.say("summary_weakest", topic=topic_name(summary.weakest, screen.language))


def _show_labelled(key: str, text: str, screen: TerminalScreen) -> None:
    """Print a text after a bold label, the word of this key."""
    screen.text(f"**{words(key, screen.language)}**{words('colon', screen.language)}{text}")
