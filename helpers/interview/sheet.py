"""Defines the sheet after a mock interview: times, ratings, strong and weak topics, and where to read on.

A mock interview is five cards (questions that the learner answers aloud and rates) and a drill (a program to write). A
sheet has one row for each. It is one document, shown as text, as Markdown and as HTML. `RoundSheet` in
`round_attempt.py` is another table in the same frame. `words(key, language)` is a sentence or word of the quiz. Those
of the sheet have keys such as "sheet.next".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from helpers.interview.card_html import PARAGRAPH, QUIET, card_link, file_address
from helpers.interview.cards import Card, NotebookCell, topic_name, words
from helpers.interview.drills import Attempt, Drill, Stopwatch, clock_text
from helpers.learner.document import (
    BREAK,
    Content,
    Element,
    heading,
    joined,
    link,
    listed,
    marked,
    page,
    paragraph,
    paragraphs,
    section,
    span,
    strong,
    table,
)

# States of a row that was answered well, and of one that was not.
STRONG, WEAK = ("good", "easy", "passed"), ("again", "hard", "skipped", "not_passed", "no_answer")
SUFFIXES = (".md", ".html", ".txt")
COLUMNS = ("number", "question", "time", "of", "rating", "read")  # keys of headings; "of": the limit of the time
LABEL = "font-size:1em;font-weight:bold;margin:.8em 0 .2em"  # of a heading below the table
CELL = "text-align:left;vertical-align:top;padding:.3em 1.2em .3em 0;border-bottom:1px solid rgba(128,128,128,.4)"


# -- rows ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class SheetItem:
    """One row: a card or the drill.

    kind: "card" or "drill". key: the id of the card, or the key of the drill. title: the question. state: a rating, or
    another name under "sheet" in quiz.yaml such as "skipped". limit and seconds: the time allowed and taken; seconds is
    None if it was not reached. links: pairs of text and address of where to read on.
    """

    kind: str
    key: str
    title: str
    topic: str
    level: str  # of a card; "" for the drill
    state: str
    limit: float
    seconds: float | None = None
    links: tuple[tuple[str, str], ...] = ()

    @property
    def is_over(self) -> bool:
        return self.seconds is not None and self.seconds > self.limit

    @property
    def is_strong(self) -> bool:
        """Whether the answer was good, and in time."""
        return self.state in STRONG and not self.is_over

    @property
    def is_weak(self) -> bool:
        """Whether the answer was not good, or not in time. A row that was not reached is neither strong nor weak."""
        return self.state in WEAK or (self.state in STRONG and self.is_over)


def card_item(card: Card, watch: Stopwatch, state: str, language: str) -> SheetItem:
    """The row of a card. state: the rating, "skipped" or "not_reached"."""
    text = card.question.in_(language)
    return SheetItem(
        kind="card", key=card.id, title=text, topic=card.topic, level=card.level, state=state, limit=watch.limit,
        seconds=watch.seconds if watch.began else None, links=_card_links(card, language),
    )  # fmt: skip


def drill_item(drill: Drill, attempt: Attempt, language: str) -> SheetItem:
    """The row of the drill."""
    state = "passed" if attempt.passed else "not_passed" if attempt.outcomes else "no_answer"
    return SheetItem(
        kind="drill", key=drill.key, title=drill.title.in_(language), topic=drill.topic, level="",
        state=state if attempt.watch.began else "not_reached", limit=attempt.watch.limit,
        seconds=attempt.watch.seconds if attempt.watch.began else None, links=drill.links(language=language),
    )  # fmt: skip


def _card_links(card: Card, language: str) -> tuple[tuple[str, str], ...]:
    """The cell or publication that shows the answer; the chapter, unless the cell is in it; and the lab, if any."""
    files = {"chapter": f"{card.chapter}.ipynb", "lab": f"labs/{card.chapter}.ipynb"}
    if isinstance(card.shown_by, NotebookCell) and card.shown_by.notebook == card.chapter:
        del files["chapter"]
    found = {name: file_address(path) for name, path in files.items()}  # None where there is no such notebook
    more = [(words[f"sheet.{name}"].say(language, card.chapter), href) for name, href in found.items() if href]
    return (card_link(card, language=language), *more)


# -- the sheet -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Sheet:
    """The sheet itself: `text`, `markdown()`, HTML in a notebook; `save("sheet.md")` writes a file.

    items: the rows. seed: of the random choice of cards, with which the mock interview can be repeated.
    """

    ONE_LINE_COLUMNS: ClassVar[tuple[int, ...]] = (2, 3, 4)  # by index: their cells are not wrapped
    WIDE_COLUMNS: ClassVar[tuple[int, ...]] = ()  # by index: at least 9 em wide
    closing: ClassVar[tuple[str, str]] = ("", "")  # a heading and a text, below the summary

    items: tuple[SheetItem, ...]
    language: str
    seed: int

    def word(self, name: str) -> str:
        """A word of the sheet in its language, with its braces not filled."""
        return words[f"sheet.{name}"].in_(self.language)

    @property
    def columns(self) -> list[str]:
        """Headings of the table."""
        return [self.word(f"column.{name}") for name in COLUMNS]

    @property
    def strong(self) -> tuple[str, ...]:
        """Topics in which every answer was good, and in time."""
        return tuple(topic for topic in self._topics("is_strong") if topic not in self.weak)

    @property
    def weak(self) -> tuple[str, ...]:
        """Topics in which an answer was not good, was skipped, or took longer than its limit."""
        return self._topics("is_weak")

    def _topics(self, quality: str) -> tuple[str, ...]:
        """The topics of the rows that have this quality, "is_strong" or "is_weak", each once, in their order."""
        return tuple(dict.fromkeys(item.topic for item in self.items if getattr(item, quality)))

    @property
    def heading(self) -> str:
        return self.word("title") + self.word("seed").format(self.seed)

    @property
    def summary(self) -> tuple[str, str]:
        """Two lines: strong topics and weak topics."""
        lines = []
        for name, topics in (("strong", self.strong), ("weak", self.weak)):
            names = self.word("comma").join(topic_name(topic, self.language) for topic in topics)
            lines.append(self.word(name) + words("colon", self.language) + (names or self.word("none")))
        return tuple(lines)

    def steps(self) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
        """What to do next, one step per weak topic: a sentence, and the links that replace its `{}`."""
        steps: dict[str, tuple[tuple[str, str], ...]] = {}
        for item in self.items:
            if item.is_weak:
                # Of a card only the place that shows its answer: its chapter and lab stand in the table.
                links = item.links[:1] if item.kind == "card" else item.links
                sentence = self._step(item)
                steps[sentence] = tuple(dict.fromkeys((*steps.get(sentence, ()), *links)))
        return list(steps.items()) or [(self.word("go_on" if self.strong else "begin"), ())]

    def _step(self, item: SheetItem) -> str:
        """What to do after a weak row: read on at `{}`, where the links come, and practise again."""
        last = "write_again" if item.kind == "drill" else "ask_again"
        return self.word("read_on") + self.word(last).format(item.key if item.kind == "drill" else item.topic)

    def time(self, item: SheetItem) -> str:
        """The time that it took, with a word where that was more than the limit."""
        if item.seconds is None:
            return "–"
        return clock_text(item.seconds) + (self.word("over") if item.is_over else "")

    def tag(self, item: SheetItem) -> str:
        """Topic and level, or that it is the drill."""
        level = words(item.level, self.language) if item.level else self.word("drill")
        return f"{topic_name(item.topic, self.language)} · {level}"

    def state(self, item: SheetItem) -> str:
        """Its rating or other state, in words."""
        return words(f"sheet.{item.state}" if f"sheet.{item.state}" in words else item.state, self.language)

    @property
    def document(self) -> Element:
        """The sheet in every format. Its colours are those of the page around it, so dark mode works too."""
        rows = [self.cells(number, item) for number, item in enumerate(self.items, start=1)]
        lines = [line for number, item in enumerate(self.items, start=1) for line in self._lines(number, item)]
        extra = dict.fromkeys(self.ONE_LINE_COLUMNS, ";white-space:nowrap")  # index of a column -> CSS
        extra |= dict.fromkeys(self.WIDE_COLUMNS, ";min-width:9em")
        closing, text = self.closing
        return section(
            heading(self.heading, 3),
            table(
                self.columns, rows, heads=lambda column: {"style": CELL},
                cells=lambda column: {"style": CELL + extra.get(column, "")},
                style="border-collapse:collapse;margin:.4em 0", plain="\n".join(lines),
            ),
            paragraph(joined(BREAK, map(strong, self.summary)), style=PARAGRAPH),
            [heading(closing, 4, style=LABEL), paragraphs(text, style=PARAGRAPH)] if text else None,
            heading(self.word("next"), 4, style=LABEL),
            listed(map(self._filled, self.steps()), style="margin:.2em 0"),
            lang=self.language, style="max-width:64em",
        )  # fmt: skip

    def _filled(self, step: tuple[str, tuple[tuple[str, str], ...]]) -> Content:
        """A step with its links."""
        sentence, links = step
        before, _, after = sentence.partition("{}")
        return marked(before), joined(self.word("comma"), [link(*one) for one in links]), marked(after)

    @property
    def text(self) -> str:
        """The sheet as plain text."""
        return self.document.text

    def markdown(self) -> str:
        """The sheet for a file or a Markdown cell."""
        return self.document.markdown

    def _repr_html_(self) -> str:
        return self.document.html

    def __repr__(self) -> str:
        return self.text

    def _lines(self, number: int, item: SheetItem) -> list[str]:
        """A row as plain text."""
        result = f"{self.time(item)} / {clock_text(item.limit)} · {self.state(item)}"
        links = [f"   {text}{words('colon', self.language)}{href}" for text, href in item.links]
        return [f"{number}. {item.title}", f"   {self.tag(item)} · {result}", *links]

    def cells(self, number: int, item: SheetItem) -> tuple[Content, ...]:
        """A row of the table, ✓ before what was strong and ○ before what was weak."""
        mark = "✓ " if item.is_strong else "○ " if item.is_weak else ""
        title = [marked(item.title), BREAK, span(self.tag(item), style=QUIET)]
        links = joined(BREAK, [link(*one) for one in item.links])
        return str(number), title, self.time(item), clock_text(item.limit), mark + self.state(item), links

    def save(self, path: str | os.PathLike) -> Path:
        """Write the sheet to a .md, .html or .txt file, never over another file: the new one gets a number.

        Returns the path of the file. Raises ValueError for another suffix, OSError where it cannot be written.
        """
        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise ValueError(f"a sheet is saved as {', '.join(SUFFIXES)}; the file was to be {path.name!r}")
        whole = page(self.document, title=self.heading, lang=self.language)
        texts = {".md": self.markdown(), ".html": whole, ".txt": self.text + "\n"}
        return write_new(path, texts[path.suffix])


def write_new(path: Path, text: str) -> Path:
    """Write a file that does not exist yet: name.md, else name-2.md, name-3.md, … Returns its path."""
    candidate, number = path, 2
    while True:
        try:
            with open(candidate, "x", encoding="utf-8") as file:
                file.write(text)
            return candidate
        except FileExistsError:
            candidate, number = path.with_name(f"{path.stem}-{number}{path.suffix}"), number + 1
