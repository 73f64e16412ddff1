"""Provides the base classes and the HTML parts of the four interview views: quiz, mock interview, drill and round.

A card is a question with its answer, a drill a function to write within some minutes. InterviewView is the base of all
views, SheetView that of the views which end with a sheet of points. The functions make what several of them show: a
question, an answer with its folds, a drill, links. `lang` is always "en" or "zh"; `in_(lang)` gives a text in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

import ipywidgets

from helpers.interview.card_html import anchor, card_link, inline, paragraphs
from helpers.interview.cards import RATINGS, Card
from helpers.interview.cards import words as quiz_words  # texts by name: learner/words/quiz.yaml
from helpers.interview.drills import Drill
from helpers.interview.sheet import Sheet
from helpers.learner.words import LANGUAGES, Words, book, language
from helpers.widgets.dials import choice
from helpers.widgets.view import Page, SavedWidget, button, display, row, style_sheet

# What a reader sees, by name, in the learner's language: learner/words/sitting.yaml. A sitting is what a learner goes
# through in one of these views, such as a mock interview; the CSS class "rr-sitting" has the same name.
words = book("sitting")


class InterviewView(SavedWidget, ipywidgets.VBox):
    """Base of QuizView, DrillView, MockView and RoundView.

    language: the dial of the language; DrillView has none. solution: where `_draw_answer` shows the answer of a card.
    links: where it shows the card's sources.
    """

    language: ipywidgets.Dropdown
    solution: ipywidgets.HTML
    links: Page

    def __init__(self, children: Sequence[ipywidgets.Widget]) -> None:
        super().__init__([style_sheet("interview"), *children])
        self.add_class("rr-sitting")

    def _text(self, name: str, **values: object) -> str:
        """A text of learner/words/sitting.yaml in the language of the dial."""
        return words(name, self.language.value, **values)

    def _make_rating_row(self, rate: Callable[[str], object]) -> ipywidgets.HBox:
        """One button per rating, which calls `rate` with the rating's name."""
        self.rating_buttons = {name: button(lambda name=name: rate(name)) for name in RATINGS}
        self._rating_label = ipywidgets.HTML()
        self._rating_box = row(self._rating_label, *self.rating_buttons.values())
        return self._rating_box

    def _draw_rating_row(self, is_shown: bool) -> None:
        """Name the ratings in the language of the dial, and show or hide them."""
        self._rating_label.value = f'<span style="font-size:14px;margin-right:8px">{self._text("rate")}</span>'
        for name, rating_button in self.rating_buttons.items():
            rating_button.description = quiz_words(name, self.language.value)
        display(self._rating_box, is_shown)

    def _draw_answer(self, card: Card | None, *, question: str = "") -> None:
        """Fill `solution` and `links` with a card's answer and its sources; without a card both are empty."""
        lang = self.language.value
        self.solution.value = answer_html(card, lang, question=question) if card else ""
        self.links.show(links_html("shown", [card_link(card, language=lang)], lang) if card else "")


def draw_buttons(buttons: Mapping[ipywidgets.Button, tuple[str, bool]]) -> None:
    """Give each button its description, and show or hide it, as the pair (description, whether it is shown) says."""
    for each, (description, is_shown) in buttons.items():
        each.description = description
        display(each, is_shown)


class SheetView(InterviewView):
    """An interview view that ends with a `sheet`. DEFAULT_FILE: where `save()` writes it. note: the bottom line."""

    DEFAULT_FILE = ""
    note: ipywidgets.HTML
    sheet: Sheet

    def save(self, path: str | os.PathLike = "") -> None:
        """Write the sheet to a file, .md, .html or .txt. A file that exists is not overwritten."""
        try:
            message = self._text("mock.saved", path=self.sheet.save(path or self.DEFAULT_FILE).name)
        except OSError as error:
            message = self._text("mock.unsaved", error=error.strerror or error)
        self._draw_note(message)

    def _draw_note(self, message: str) -> None:
        """Show a message in the bottom line."""
        self.note.value = f'<p class="rr-said" role="status">{escape(message)}</p>'


def question_html(heading: str, text: str) -> str:
    """A question below its heading, which has its number, level and topic."""
    return f'<p class="rr-meta">{escape(heading)}</p><p class="rr-question" aria-live="polite">{inline(text)}</p>'


def answer_html(card: Card, lang: str, *, question: str = "") -> str:
    """The 30-second answer, and folded below it the 3-minute answer, the usual mistake and the follow-ups.

    question: what the learner was asked. Where that is a variant of the card's question, the card's own is repeated.
    """
    original = card.question.in_(lang)
    above = f'<p class="rr-meta" style="margin:0">{inline(original)}</p>' if question and question != original else ""
    folds = [(words("long", lang), [card.longer]), (quiz_words("usual_mistake", lang), [card.usual_mistake])]
    folds.append((quiz_words("follow_ups", lang), card.follow_ups))
    body = f'{above}<b class="rr-label">{words("short", lang)}</b>{paragraphs(card.answer.in_(lang))}'
    body += "".join(_fold(label, texts, lang) for label, texts in folds if any(texts))  # a card may lack any of them
    return f'<div class="rr-answer" lang="{lang}">{body}</div>'


def _fold(label: str, texts: Sequence[Words], lang: str) -> str:
    """Texts that open with a click on the label."""
    folded = "".join(paragraphs(text.in_(lang)) for text in texts)
    return f"<details><summary>{escape(label)}</summary>{folded}</details>"


def drill_html(drill: Drill, lang: str) -> str:
    """What to write, what is checked (`counts`), and the stub to copy."""
    counts = "".join(f"<li>{inline(text.in_(lang))}</li>" for text in drill.counts)
    return (
        f'<div class="rr-answer" lang="{lang}"><p><b>{escape(drill.title.in_(lang))}</b></p>'
        f'{paragraphs(drill.prompt.in_(lang))}<b class="rr-label">{words("counts", lang)}</b><ul>{counts}</ul>'
        f'<b class="rr-label">{words("given", lang)}</b><pre>{escape(drill.stub)}</pre></div>'
    )


def drill_answer_html(drill: Drill, lang: str) -> str:
    """The drill's right answer, folded; "" where the lab's solution has it."""
    label = quiz_words("drill.answer", lang)
    return f"<details><summary>{label}</summary><pre>{escape(drill.answer)}</pre></details>" if drill.answer else ""


def links_html(label: str, links: Sequence[tuple[str, str]], lang: str) -> str:
    """A line such as "Shown by: …". links: pairs of text and address."""
    anchors = words("comma", lang).join(anchor(*each) for each in links)
    return f'<p style="margin:2px 14px;font-size:13px">{words(label, lang)}{quiz_words("colon", lang)}{anchors}</p>'


def call_html(call: str, lang: str) -> str:
    """The line of code that submits an answer, to copy."""
    then = f'<p class="rr-meta" style="margin:0">{words("then", lang)}</p>'
    return f'<div style="margin:2px 14px">{then}<pre>{escape(call)}</pre></div>'


def language_dial(value: str | None) -> ipywidgets.Dropdown:
    """The dial of the language. It starts at `value`, or at the language that was chosen for the course."""
    return choice([(name, lang) for lang, name in LANGUAGES.items()], language(value), "language · 语言")


def bilingual_options(names: Iterable[str], word: Callable[[str, str], str] = quiz_words) -> list[tuple[str, str]]:
    """Options of a dial, "all" first: each name with its Chinese word, where that is another one."""
    pairs = [(name, word(name, "zh")) for name in names]
    return [("all · 全部", ""), *((name if zh == name else f"{name} · {zh}", name) for name, zh in pairs)]


def set_dial_widths(dials: Iterable[ipywidgets.Dropdown]) -> None:
    """The width of the interview views' dials, in pixels: two stand beside each other."""
    for each in dials:
        each.layout.width, each.style.description_width = "272px", "104px"


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
