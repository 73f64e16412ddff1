"""Provides the views of the interview: quiz, drill, mock interview, round and dialogue, each a TalkView with its dials.

A card is a question with its answer, and a drill is a program to write within some minutes. A round shows a log or code
in which the learner marks what is wrong, or asks for a training plan. A dialogue is a worked interview. Each view makes
the talk that its dials describe; what is then asked and shown is the talk's, and how it is shown is TalkView's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets

from helpers.interview import load_all
from helpers.interview.card_html import card_html
from helpers.interview.cards import LEVELS, Card, topic_name, topic_of
from helpers.interview.cards import words as quiz_words  # texts by name: learner/words/quiz.yaml
from helpers.interview.dialogue_talk import DialogueTalk
from helpers.interview.dialogues import dialogue, dialogue_html, write_page
from helpers.interview.dialogues import words as dialogue_words
from helpers.interview.drills import Attempt, Judge, Now, drill, drill_parts
from helpers.interview.mock import MockInterview
from helpers.interview.quiz import FORMS, Quiz, list_topics
from helpers.interview.round_attempt import RoundAttempt, new_attempt
from helpers.interview.round_items import choose_round, rounds
from helpers.interview.sheet import Sheet
from helpers.interview.steps import Tell, labels
from helpers.learner.progress import FilePath
from helpers.learner.words import LANGUAGES
from helpers.learner.words import language as chosen_language
from helpers.widgets.talk_view import TalkView, parts_html, round_words
from helpers.widgets.view import display, dropdown


class QuizView(TalkView):
    """Cards of the bank, what is due first. Without a front end: `.reply()`, `.reply("good")`, `.act("skip")`, `.text`.

    topics, levels, language, form: where the dials start; one topic and one level, or none for all. path: the progress
    file, if it is not the one in the home. seed: of the random order. now: a function that returns the time, for tests.
    cards: instead of the whole bank.
    """

    TEXT = "[widget] QuizView: interview cards with folded answers, choices and numbers; what is due comes first"
    talk: Quiz

    def __init__(
        self, topics: Iterable[str] | str = (), levels: Iterable[str] | str = (), language: str | None = None,
        form: str = "mixed", *, path: FilePath = None, seed: int | None = None, now: Now | None = None,
        cards: Iterable[Card] | None = None,
    ) -> None:  # fmt: skip
        self._cards = load_all() if cards is None else tuple(cards)
        self._options: dict[str, Any] = {"path": path, "seed": seed, "now": now}
        # A learner may also name a chapter, "03_ddp", whose topic is "ddp".
        topic, level = topic_of(_first(topics)), _first(levels)
        self.topic = dropdown(bilingual_options(list_topics(self._cards), topic_name), topic, "topic · 主题")
        self.level = dropdown(bilingual_options(LEVELS), level, "level · 级别")
        self.language = language_dial(language)
        forms = [(f"{name} · {quiz_words(name, 'zh')}", name) for name in ("mixed", *FORMS)]
        self.form = dropdown(forms, form, "form · 题型")
        dials = (self.topic, self.level, self.form, self.language)
        set_dial_widths(dials)
        self.progress, self._asks_ahead = ipywidgets.HTML(), False
        super().__init__(dials, above=[self.progress])
        self._dials.layout.max_width = "620px"  # two beside each other
        for dial in dials:
            dial.observe(self.start, names="value")
        self.start()

    def make_talk(self) -> Quiz:
        """A quiz with the values of the dials."""
        topics, levels = ([dial.value] if dial.value else [] for dial in (self.topic, self.level))  # [] means all
        wanted = {"topics": topics, "levels": levels, "form": self.form.value, "language": self.language.value}
        ahead, self._asks_ahead = self._asks_ahead, False
        return Quiz(self._cards, **wanted, ahead=ahead, **self._options)

    def again(self) -> None:
        """Continue with cards that are not due yet."""
        self._asks_ahead = True
        super().again()

    @property
    def sentence(self) -> str:
        """How many cards were asked, were right, and remain."""
        if self.talk is None:
            return ""
        counts = {"asked": self.talk.asked, "right": self.talk.right, "remaining": self.talk.remaining}
        return labels("quiz.asked", self.language.value, **counts)

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        return "\n".join(filter(None, (self.sentence, super().text)))

    def _draw(self) -> None:
        self.progress.value = f'<p class="rr-meta">{escape(self.sentence)}</p>'
        super()._draw()

    def _again_text(self, language: str) -> str:
        return labels("quiz.ahead", language) if self.talk is not None and self.step is None else ""

    @property
    def saved_html(self) -> str:
        """The bank's first card, folded."""
        first = next((card for card in self._cards if self.topic.value in ("", card.topic)), self._cards[0])
        count = f"Cards in the bank: {len(self._cards)}, topics: {len(list_topics(self._cards))}. One of them:"
        return f"<div><p>{count}</p>{card_html(first)}</div>"


class DrillView(TalkView):
    """A coding drill. `begin()` or its button starts the clock; `check(function)`, in the next cell, checks the answer.

    key: such as "03.average". check: `(key, answer) -> verdict`, such as helpers.grading.grade, which
    `helpers.grading.drill(key)` passes. language: "en" or "zh", by default the learner's. path: the progress file. now:
    a function that returns the time, for tests. Raises ValueError for a key that has no drill.
    """

    TEXT = "[widget] DrillView: a thing to write in 15 minutes, with a clock"
    CALL, HIDDEN = "check", ("give_up",)

    def __init__(
        self, key: str, check: Judge | None = None, *, language: str | None = None, path: FilePath = None,
        now: Now | None = None,
    ) -> None:  # fmt: skip
        self.drill, self.NAME = drill(key), f'drill("{key}")'
        self._options = {"language": chosen_language(language), "path": path, "now": now}
        self._check = check
        super().__init__()
        self.start()

    def make_talk(self) -> Attempt:
        """An attempt, whose clock has not begun."""
        return Attempt(self.drill, self._check, **self._options)

    @property
    def passed(self) -> bool:
        """Whether the program has passed."""
        return self.talk.passed

    def begin(self) -> DrillView:
        """Start the clock; a second call changes nothing."""
        self.act("begin")
        return self

    def check(self, answer: Any) -> Tell:
        """Check an answer, a function or class, and note it; the links to chapter and lab show once it was tried."""
        if self.step is None:  # it has passed: the cell was run again
            self.start()
        return self.submit(answer)

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        return "\n".join(([self.clock.text] if self.step else []) + [super().text])

    @property
    def saved_html(self) -> str:
        """What a saved notebook shows: the prompt."""
        language = self._language
        minutes = f"<p>{escape(self.drill.key)} · {self.drill.minutes}:00</p>"
        return f"<div>{minutes}{parts_html(drill_parts(self.drill, language), language)}</div>"


class SheetView(TalkView):
    """A talk against the clock that ends with a sheet. Its dials are shown before it begins and once it is over."""

    INTRO, AGAIN = "", ""  # what a saved notebook shows, and the word on the button that begins another talk

    def begin(self) -> SheetView:
        """Start the clock; a second call changes nothing."""
        if not self.has_begun:
            self.reply()
        return self

    @property
    def sheet(self) -> Sheet:
        """What was done so far. It can be read at any time. Raises ValueError where there is no talk."""
        if self.talk is None:
            raise ValueError(self.problem)
        return self.talk.sheet

    def _draw(self) -> None:
        super()._draw()
        display(self._dials, not self.has_begun or self.step is None)

    def _again_text(self, language: str) -> str:
        return self.AGAIN.in_(language) if self.document else ""

    @property
    def saved_html(self) -> str:
        """What a saved notebook shows: what this is, without its questions."""
        return f"<p>{escape(self.INTRO.in_(self.language.value))}</p>"


class MockView(SheetView):
    """A mock interview. Without a front end: `.begin()`, `.reply()`, `.reply("good")`, `.submit(function)`,
    `.act("skip")`, `.finish()`, `.sheet`.

    check: `(key, answer) -> verdict` for the drill; helpers.grading.mock_view() passes the labs' checks. level, topics:
    those of the cards, by default all. seed: of the random choice of cards. cards: to choose from, by default all of
    the course. language, path, now: as in DrillView.
    """

    DEFAULT_FILE = "mock-interview.md"
    TEXT = "[widget] MockView: five cards and one drill against the clock, then a sheet of what was strong and weak"
    INTRO, AGAIN = labels["mock.intro"], labels["mock.again"]
    talk: MockInterview

    def __init__(
        self, check: Judge | None = None, *, level: str | None = None, topics: Iterable[str] = (),
        language: str | None = None, seed: int | None = None, path: FilePath = None, now: Now | None = None,
        cards: Iterable[Card] | None = None,
    ) -> None:  # fmt: skip
        self._seed = seed
        self._options = {"check": check, "topics": topics, "path": path, "now": now, "cards": cards}
        self.level = dropdown(bilingual_options(LEVELS), level or "", "level · 级别")
        self.language = language_dial(language)
        set_dial_widths((self.level, self.language))
        super().__init__((self.level, self.language))
        for dial in (self.level, self.language):
            dial.observe(self.start, names="value")
        self.start()

    def make_talk(self) -> MockInterview:
        """An interview for the level and language of the dials."""
        level, language = self.level.value or None, self.language.value
        return MockInterview(level=level, language=language, seed=self._seed, **self._options)

    def again(self) -> None:
        """Prepare another interview, with other cards."""
        self._seed = None  # the choice of cards is random again
        super().again()


class RoundView(SheetView):
    """An interview round. Without a front end: `.begin()`, `.reply((7, "why"), "mark")`, `.act("hint")`, `.reply()`, or
    `.reply("dp=4 tp=8")`; then `.finish()`, `.sheet`.

    name: a kind, "debugging", "review" or "design", or the id of a round. language: "en" or "zh", by default the
    learner's. now: a function that returns the time, for tests.
    """

    DEFAULT_FILE = "round.md"
    TEXT = "[widget] RoundView: debugging, code review or design against the clock, then a sheet with points"
    INTRO, AGAIN = round_words["view.intro"], round_words["view.again"]
    talk: RoundAttempt

    def __init__(self, name: str = "debugging", *, language: str | None = None, now: Now | None = None) -> None:
        self._now, first = now, choose_round(name, language, seed=0)  # seed 0: always the same round of a kind
        self.language = language_dial(language)
        self.which = dropdown(_titles(self.language.value), first.id, "round · 题目")
        self.which.layout.width = "480px"
        self.intro = ipywidgets.HTML()
        super().__init__((self.which, self.language), above=[self.intro])
        self.which.observe(self.start, names="value")
        self.language.observe(self._translate, names="value")
        self.start()

    def make_talk(self) -> RoundAttempt:
        """An attempt at the round of the dial."""
        return new_attempt(choose_round(self.which.value), language=self.language.value, now=self._now)

    def _translate(self, change: object) -> None:
        """Prepare the same round in another language."""
        chosen = self.which.value
        self.which.options = _titles(self.language.value)
        self.which.value = chosen
        self.start()

    @property
    def text(self) -> str:
        """What is shown now, as plain text."""
        return super().text if self.has_begun else f"{self.INTRO.in_(self.language.value)}\n{super().text}"

    def _draw(self) -> None:
        self.intro.value = f'<p class="rr-meta">{escape(self.INTRO.in_(self.language.value))}</p>'
        display(self.intro, not self.has_begun)
        super()._draw()


class DialogueView(TalkView):
    """A worked interview. Without a front end: `.reply("my answer")`, `.act("all")`, then `.text`.

    name: such as "pretrain-70b". language: "en" or "zh", by default the learner's. Raises ValueError with all names for
    an unknown one.
    """

    talk: DialogueTalk

    def __init__(self, name: str = "pretrain-70b", *, language: str | None = None) -> None:
        self.dialogue = dialogue(name, language)
        self.TEXT = f"[widget] DialogueView: a worked interview, {self.dialogue.title.en}"
        self.language, self.heading = language_dial(language), ipywidgets.HTML()
        set_dial_widths((self.language,))
        super().__init__((self.language,), above=[self.heading])
        self.language.observe(self._translate, names="value")
        self.start()

    def make_talk(self) -> DialogueTalk:
        """The dialogue from its beginning, in the language of the dial."""
        return DialogueTalk(self.dialogue, language=self.language.value)

    def page(self, path: str | Path) -> Path:
        """Write the whole dialogue as a page to print, in the language of the dial. Returns its path."""
        return write_page(self.dialogue, path, self.language.value)

    def _translate(self, change: object) -> None:
        """Show as many turns as before in another language."""
        replies = self._replies
        self.start()
        for reply in replies:
            self._take(reply)

    def _draw(self) -> None:
        title = self.dialogue.title.in_(self.language.value)
        intro = dialogue_words("intro", self.language.value, minutes=self.dialogue.minutes)
        self.heading.value = f'<p class="rr-question">{title}</p><p class="rr-meta">{intro}</p>'
        super()._draw()

    def _feedback_html(self, ask: object) -> str:
        return ""  # title and introduction stand above the turns, and stay there

    def _again_text(self, language: str) -> str:
        return dialogue_words("again", language) if self.has_begun else ""

    @property
    def saved_html(self) -> str:
        """What a saved notebook shows: the whole dialogue, and nothing of what the learner wrote."""
        return dialogue_html(self.dialogue, self.language.value)


# -- dials -----------------------------------------------------------------------------------------------------------
def language_dial(value: str | None) -> ipywidgets.Dropdown:
    """The dial of the language. It starts at `value`, or at the language that was chosen for the course."""
    return dropdown([(name, lang) for lang, name in LANGUAGES.items()], chosen_language(value), "language · 语言")


def bilingual_options(names: Iterable[str], word: Callable[[str, str], str] = quiz_words) -> list[tuple[str, str]]:
    """Options of a dial, "all" first: each name with its Chinese word, where that is another one."""
    pairs = [(name, word(name, "zh")) for name in names]
    return [("all · 全部", ""), *((name if zh == name else f"{name} · {zh}", name) for name, zh in pairs)]


def set_dial_widths(dials: Sequence[ipywidgets.Dropdown]) -> None:
    """The width of the dials, in pixels: two stand beside each other."""
    for each in dials:
        each.layout.width, each.style.description_width = "272px", "104px"


def _titles(language: str) -> list[tuple[str, str]]:
    """Kind and title of each round, with its id, for the dial."""
    return [(f"{round_words(one.kind, language)} · {one.title.in_(language)}", one.id) for one in rounds()]


def _first(names: Iterable[str] | str) -> str:
    """One name, as a dial can show it. ValueError for several."""
    names = (names,) if isinstance(names, str) else tuple(names)
    if len(names) > 1:
        raise ValueError(f"the dial holds one name, this is {', '.join(names)}; give one, or none for all")
    return names[0] if names else ""
