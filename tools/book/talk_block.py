"""Puts the interview's talks into pages: a place with a button to start, which the page's script turns into a player.

A talk is a quiz, a worked interview or a round (helpers/interview/steps.py). The page holds none of its questions and
answers: the page's Python (page/talks.py) yields them when the player asks for the next step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from html import escape
from pathlib import Path

from helpers.interview.bank_file import load_all
from helpers.interview.cards import topic_name
from helpers.interview.dialogues import dialogue
from helpers.interview.quiz import list_topics
from helpers.interview.quiz_command import COUNT
from helpers.interview.round_items import rounds
from helpers.interview.round_items import words as round_words
from helpers.learner.document import html_of, marked
from helpers.learner.words import book
from tools.book.address import with_address
from tools.book.cells import calls, statements

KINDS = {"QuizView": "quiz", "DialogueView": "dialogue", "RoundView": "round"}  # what a notebook calls -> the talk
WITH_RANKS = ("mock_view", "drill")  # calls whose talks ask for code that is checked on live ranks
VIEWS = (*KINDS, "MockView")  # whose saved picture the place, or the note, replaces
words = book("words", Path(__file__).parent)


def talks_html(cell: str, language: str) -> list[str]:
    """The places of the talks that a notebook's cell starts, and a note where one needs live ranks."""
    called = list(calls(statements(cell)))
    talks = [(KINDS[name], map(ast.literal_eval, call.args)) for name, call in called if name in KINDS]
    blocks = [talk_html(kind, *arguments, language=language) for kind, arguments in talks]
    if any(name in WITH_RANKS for name, _ in called):
        note = with_address(words("talk.needs_ranks", language), language)
        blocks.append(f'<p class="rr-note">{html_of(marked(note))}</p>')
    return blocks


def is_talk(plain: str) -> bool:
    """Whether a cell's output, given as plain text, is the saved picture of a talk."""
    return plain.startswith(tuple(f"[widget] {name}:" for name in VIEWS))


def talk_html(kind: str, name: str = "", *, language: str) -> str:
    """The place of a talk. name: of a worked interview, or of the kind of rounds that come first in the list."""
    if kind == "quiz":
        about, fields = words("talk.quiz.about", language, count=len(load_all())), _quiz_fields(language)
    elif kind == "dialogue":
        one = dialogue(name)
        about = words("talk.dialogue.about", language, title=one.title.in_(language), minutes=one.minutes)
        fields = [f'<input type="hidden" name="name" value="{name}">']
    else:
        items = sorted(rounds(), key=lambda one: one.kind != name)
        options = [(one.id, f"{round_words(one.kind, language)} · {one.title.in_(language)}") for one in items]
        about = words("talk.round.about", language)
        fields = [_select("name", words("talk.round.which", language), options)]
    start = f'<button type="submit" class="rr-first">{words("talk.start", language)}</button>'
    return "\n".join(
        [
            f'<div class="rr-talk" data-kind="{kind}">',
            f"<p>{escape(about)}</p>",
            f'<noscript><p class="rr-note">{words("talk.no_script", language)}</p></noscript>',
            f'<form class="rr-form rr-start" hidden>{"".join(fields)}{start}</form>',
            "</div>",
        ]
    )


def _quiz_fields(language: str) -> list[str]:
    """Which cards the quiz asks, and how many."""
    topics = [(topic, topic_name(topic, language)) for topic in list_topics(load_all())]
    which = [(name, words(f"talk.quiz.{name}", language)) for name in ("both", "due", "ahead")]
    number = f'<input type="number" name="count" value="{COUNT}" min="1" max="99" required>'
    return [
        _select("topic", words("talk.quiz.topic", language), [("", words("talk.quiz.all", language)), *topics]),
        f"<label>{words('talk.quiz.count', language)} {number}</label>",
        _select("which", words("talk.quiz.which", language), which),
    ]


def _select(name: str, label: str, options: Iterable[tuple[str, str]]) -> str:
    """A labelled list to choose from. options: pairs of value and text."""
    choices = "".join(f'<option value="{value}">{escape(text)}</option>' for value, text in options)
    return f'<label>{label} <select name="{name}">{choices}</select></label>'


def quiz_page(language: str) -> str:
    """The page of the quiz, in Markdown."""
    title, text = words("talk.quiz.title", language), words("talk.quiz.page", language)
    return "\n".join([f"# {title}", "", text, "", talk_html("quiz", language=language), ""])
