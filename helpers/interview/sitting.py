"""A sitting of the quiz in a terminal: ask, unfold, rate, until it is over; then what it came to."""

from __future__ import annotations

from helpers.interview.cards import Card
from helpers.interview.links import link
from helpers.interview.screen import Over, Screen
from helpers.interview.session import Answer, Question, Quiz
from helpers.interview.verify import stands_in
from helpers.interview.words import say, topic_name

MORE = ("m", "more", "更多")
SKIP = ("s", "skip", "跳过")


class Skipped(Exception):
    """The learner wants another card."""


def sit(quiz: Quiz, screen: Screen) -> None:
    """Ask until the learner has enough or nothing is left, then the summary."""
    Sitting(quiz, screen).run()


class Sitting:
    """A quiz on a screen."""

    def __init__(self, quiz: Quiz, screen: Screen):
        self.quiz, self.screen = quiz, screen
        self._told = ""

    def run(self) -> None:
        self._tell_note()
        if self.quiz.question is None:
            self.screen.say("nothing_due")
            return
        self.screen.say("welcome", count=self.quiz.remaining)
        try:
            while self.quiz.question is not None:
                self._one(self.quiz.question)
        except Over:
            pass
        show_summary(self.quiz, self.screen)

    def _one(self, question: Question) -> None:
        self._show(question)
        try:
            answer = self._folded(question) if question.form == "folded" else self._answered(question)
        except Skipped:
            self.quiz.skip()
            return
        self._tell_note()
        if question.form != "folded":
            self._result(answer)
            is_told = show_answer(answer.card, self.screen, answer.form)
            if self.quiz.question is not None:
                self._ask(self._word("ask_next_told" if is_told else "ask_next"), answer.card, is_told=is_told)

    def _show(self, question: Question) -> None:
        card, screen = question.card, self.screen
        place = say("place", screen.language, number=self.quiz.asked + 1, total=self.quiz.asked + self.quiz.remaining)
        is_new = [self._word("is_new")] if question.is_new else []
        screen.line()
        screen.rule()
        screen.line(
            " · ".join([place, topic_name(card.topic, screen.language), self._word(card.level), *is_new]), "quiet"
        )
        screen.line()
        screen.text(question.text, style="bold")
        if question.options:
            screen.line()
        for letter, option in zip("abcde", question.options, strict=False):
            screen.text(option, first=f"  {letter}) ")
        screen.line()

    def _folded(self, question: Question) -> Answer:
        """Enter shows the answer; then the learner rates it. A word typed before is an answer to oneself."""
        self._ask(self._word("ask_unfold"), None, may_skip=True)
        show_answer(question.card, self.screen)
        while True:
            typed = self._ask(self._word("ask_rating"), question.card, may_skip=True)
            if answer := self._given(typed):
                self._result(answer)
                return answer

    def _answered(self, question: Question) -> Answer:
        prompt = say("ask_letter", self.screen.language, last="abcde"[len(question.options) - 1])
        if question.form == "number":
            has_unit = question.unit not in ("", "x", "×")
            prompt = say("ask_number" if has_unit else "ask_count", self.screen.language, unit=question.unit)
        while True:
            typed = self._ask(prompt, None, may_skip=True)
            if answer := self._given(typed):
                return answer

    def _given(self, typed: str) -> Answer | None:
        """The answer, or None with a sentence where it cannot be read."""
        try:
            return self.quiz.answer(typed) if typed else None
        except ValueError as error:
            self.screen.text(str(error))
            return None

    def _ask(self, prompt: str, card: Card | None, *, may_skip: bool = False, is_told: bool = False) -> str:
        """What is typed that is no command. card: whose longer answer m shows, once it is no secret; is_told: it stands
        there already."""
        while True:
            typed = self.screen.ask(prompt)
            if typed in ("?", "？", "help", "帮助"):
                self.screen.say("help")
            elif typed.lower() in MORE:
                show_more(card, self.screen, is_told=is_told) if card else self.screen.say("more_later")
            elif may_skip and typed.lower() in SKIP:
                raise Skipped
            else:
                return typed

    def _result(self, answer: Answer) -> None:
        self.screen.line()
        self.screen.text(answer.sentence, style="right" if answer.passed else "wrong")

    def _tell_note(self) -> None:
        """What is wrong with the progress file, once each."""
        if self.quiz.note != self._told:
            self._told = self.quiz.note
            if self._told:
                self.screen.text(self._told, style="wrong")

    def _word(self, key: str) -> str:
        return say(key, self.screen.language)


def show_answer(card: Card, screen: Screen, form: str = "folded") -> bool:
    """The 30-second answer, the usual mistake, and where it is shown; returns whether the longer answer was shown, too.

    A number is asked with words of its own: then the card's question stands before, and the longer answer is shown
    too where only that one holds the number.
    """
    screen.line()
    if form == "number":
        screen.text(card.question.in_(screen.language), style="bold")
        screen.line()
    screen.text(card.answer.in_(screen.language))
    is_told = form == "number" and bool(card.longer)
    is_told = is_told and not stands_in(card.predict.says, card.answer.in_(screen.language))
    if is_told:
        screen.line()
        screen.text(card.longer.in_(screen.language))
    if card.usual_mistake:
        screen.line()
        _labelled("usual_mistake", card.usual_mistake.in_(screen.language), screen)
    screen.line()
    text, address = link(card, "notebooks/", language=screen.language)
    screen.text(say("shown_by", screen.language, place=text), style="quiet")
    screen.line(f"  {address}", "quiet")
    screen.line()
    return is_told


def show_more(card: Card, screen: Screen, *, is_told: bool = False) -> None:
    """The longer answer, unless it was told, and what an interviewer asks next."""
    screen.line()
    if not is_told:
        screen.text(card.longer.in_(screen.language) if card.longer else say("no_longer", screen.language))
        screen.line()
    if card.follow_ups:
        between = say("between", screen.language)
        _labelled("follow_ups", between.join(text.in_(screen.language) for text in card.follow_ups), screen)
        screen.line()


def show_summary(quiz: Quiz, screen: Screen) -> None:
    """Asked, right, due tomorrow, weakest topic."""
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


def _labelled(key: str, text: str, screen: Screen) -> None:
    screen.text(f"**{say(key, screen.language)}**{say('colon', screen.language)}{text}")
