"""The sheet after a mock interview: times, ratings, strong and weak topics, where to read on. Text, HTML, Markdown."""

from __future__ import annotations

import html
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from helpers.interview.cards import Card, Cell
from helpers.interview.drills import Attempt, Drill
from helpers.interview.links import file_address, link
from helpers.interview.render import QUIET, anchor, inline, paragraphs
from helpers.interview.stopwatch import Stopwatch, clock_text
from helpers.interview.words import say, topic_name

STRONG, WEAK = ("good", "easy", "passed"), ("again", "hard", "skipped", "not_passed", "no_answer")
SUFFIXES = (".md", ".html", ".txt")
COLUMNS = ("number", "question", "time", "of", "rating", "read")
CELL = "text-align:left;vertical-align:top;padding:.3em 1.2em .3em 0;border-bottom:1px solid rgba(128,128,128,.4)"


@dataclass(frozen=True, kw_only=True)
class Item:
    """One card or the drill. state: a name under "sheet" in quiz.yaml, a rating or "skipped". links: text, href.

    seconds: taken, None if not reached.
    """

    kind: str
    key: str
    title: str
    topic: str
    level: str
    state: str
    limit: float
    seconds: float | None = None
    links: tuple[tuple[str, str], ...] = ()

    @property
    def is_over(self) -> bool:
        return self.seconds is not None and self.seconds > self.limit

    @property
    def is_strong(self) -> bool:
        return self.state in STRONG and not self.is_over

    @property
    def is_weak(self) -> bool:
        return self.state in WEAK or (self.state in STRONG and self.is_over)


def card_item(card: Card, watch: Stopwatch, state: str, language: str) -> Item:
    """A card as it went. state: the rating, "skipped" or "not_reached"."""
    text = card.question.in_(language)
    return Item(
        kind="card", key=card.id, title=text, topic=card.topic, level=card.level, state=state, limit=watch.limit,
        seconds=watch.seconds if watch.began else None, links=_links(card, language),
    )  # fmt: skip


def drill_item(drill: Drill, attempt: Attempt, language: str) -> Item:
    """The drill as it went."""
    state = "passed" if attempt.passed else "not_passed" if attempt.outcomes else "no_answer"
    return Item(
        kind="drill", key=drill.key, title=drill.title.in_(language), topic=drill.topic, level="",
        state=state if attempt.watch.began else "not_reached", limit=attempt.watch.limit,
        seconds=attempt.watch.seconds if attempt.watch.began else None, links=drill.places(language=language),
    )  # fmt: skip


def _links(card: Card, language: str) -> tuple[tuple[str, str], ...]:
    """The cell or source that shows it, the chapter where that is no cell of it, the lab: those that are there."""
    files = {"chapter": f"{card.chapter}.ipynb", "lab": f"labs/{card.chapter}.ipynb"}
    if isinstance(card.shown_by, Cell) and card.shown_by.notebook == card.chapter:
        del files["chapter"]
    found = [
        (say[f"sheet.{word}"].say(language, card.chapter), href)
        for word, path in files.items()
        if (href := file_address(path))
    ]
    return (link(card, language=language), *found)


@dataclass(frozen=True)
class Markup:
    """How a format writes a text, a quiet one, a link and the end of a line; marks: ✓ and ○ before a state."""

    text: Callable[[str], str]
    quiet: Callable[[str], str]
    link: Callable[[str, str], str]
    end: str
    marks: bool = False


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What `MockInterview.sheet` is. `text`, `markdown()`, HTML in a notebook; `save("sheet.md")` keeps it."""

    NARROW: ClassVar[tuple[int, ...]] = (2, 3, 4)  # columns whose cells are one line
    ROOMY: ClassVar[tuple[int, ...]] = ()  # columns that others leave room for some words

    items: tuple[Item, ...]
    language: str
    seed: int
    closing: ClassVar[tuple[str, str]] = ("", "")  # a heading and a text, below the summary

    def say(self, name: str) -> str:
        """A word of the sheet in its language, braces left as they are."""
        return say[f"sheet.{name}"].in_(self.language)

    @property
    def columns(self) -> list[str]:
        """Headings of the table."""
        return [self.say(f"column.{name}") for name in COLUMNS]

    @property
    def strong(self) -> tuple[str, ...]:
        """Topics in which all that was answered was good, and in time."""
        return tuple(topic for topic in self._topics("is_strong") if topic not in self.weak)

    @property
    def weak(self) -> tuple[str, ...]:
        """Topics in which something was not, was skipped, or took longer than its limit."""
        return self._topics("is_weak")

    def _topics(self, quality: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.topic for item in self.items if getattr(item, quality)))

    @property
    def heading(self) -> str:
        return self.say("title") + self.say("seed").format(self.seed)

    @property
    def summary(self) -> tuple[str, str]:
        """Two lines: strong topics and weak topics."""
        return tuple(
            self.say(name)
            + say("colon", self.language)
            + (self.say("comma").join(topic_name(topic, self.language) for topic in topics) or self.say("none"))
            for name, topics in (("strong", self.strong), ("weak", self.weak))
        )

    def steps(self) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
        """What to do next, one step a weak topic: a sentence, and the links that stand in its place `{}`."""
        steps: dict[str, tuple[tuple[str, str], ...]] = {}
        for item in self.items:
            if item.is_weak:
                found = item.links[:1] if item.kind == "card" else item.links
                steps[self._step(item)] = tuple(dict.fromkeys((*steps.get(self._step(item), ()), *found)))
        return list(steps.items()) or [(self.say("go_on" if self.strong else "begin"), ())]

    def _step(self, item: Item) -> str:
        last = "write_again" if item.kind == "drill" else "ask_again"
        return self.say("read_on") + self.say(last).format(item.key if item.kind == "drill" else item.topic)

    def time(self, item: Item) -> str:
        """Taken, with a word where it was more than the limit."""
        if item.seconds is None:
            return "–"
        return clock_text(item.seconds) + (self.say("over") if item.is_over else "")

    def tag(self, item: Item) -> str:
        """Topic and level, or that it is the drill."""
        level = say(item.level, self.language) if item.level else self.say("drill")
        return f"{topic_name(item.topic, self.language)} · {level}"

    def state(self, item: Item) -> str:
        """Its rating or what became of it, in words."""
        return say(f"sheet.{item.state}" if f"sheet.{item.state}" in say else item.state, self.language)

    @property
    def text(self) -> str:
        """All of it as plain text."""
        lines = [self.heading, ""]
        for number, item in enumerate(self.items, start=1):
            lines += self._lines(number, item)
        lines += ["", *self.summary, "", *(f"{part}\n" for part in self.closing if part), self.say("next")]
        comma = self.say("comma")
        steps = [_filled(sentence, comma.join(text for text, _ in links)) for sentence, links in self.steps()]
        return "\n".join(lines + [f"- {step}" for step in steps])

    def _lines(self, number: int, item: Item) -> list[str]:
        """A row as plain text."""
        told = f"{self.time(item)} / {clock_text(item.limit)} · {self.state(item)}"
        links = [f"   {text}{say('colon', self.language)}{href}" for text, href in item.links]
        return [f"{number}. {item.title}", f"   {self.tag(item)} · {told}", *links]

    def cells(self, number: int, item: Item, to: Markup) -> tuple[str, ...]:
        """A row, a cell a column."""
        mark = "✓ " if item.is_strong else "○ " if item.is_weak else ""
        title = f"{to.text(item.title)}{to.end}{to.quiet(self.tag(item))}"
        read = to.end.join(to.link(*one) for one in item.links)
        return str(number), title, self.time(item), clock_text(item.limit), mark * to.marks + self.state(item), read

    def __repr__(self) -> str:
        return self.text

    def markdown(self) -> str:
        """For a file or a Markdown cell."""
        columns = self.columns
        lines = [f"# {self.heading}", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        for number, item in enumerate(self.items, start=1):
            lines.append(f"| {' | '.join(self.cells(number, item, MARKDOWN))} |")
        lines += ["", *(f"**{line}**  " for line in self.summary), ""]
        heading, text = self.closing
        lines += [f"## {heading}", "", text, ""] * bool(text) + [f"## {self.say('next')}", ""]
        comma = self.say("comma")
        steps = [
            _filled(sentence, comma.join(_markdown_link(*one) for one in links)) for sentence, links in self.steps()
        ]
        return "\n".join(lines + [f"- {step}" for step in steps]) + "\n"

    def _repr_html_(self) -> str:
        return sheet_html(self)

    def save(self, path: str | os.PathLike) -> Path:
        """Write it to a file: .md, .html or .txt. One that is there stays: the new one gets a number. Returns its path.

        Raises ValueError for another ending, OSError where it cannot be written.
        """
        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise ValueError(f"a sheet is saved as {', '.join(SUFFIXES)}; the file was to be {path.name!r}")
        page = f'<!doctype html><meta charset="utf-8"><title>{html.escape(self.heading)}</title>{self._repr_html_()}\n'
        texts = {".md": self.markdown(), ".html": page, ".txt": self.text + "\n"}
        return write_new(path, texts[path.suffix])


def write_new(path: Path, text: str) -> Path:
    """Write a file that is not there yet: name.md, else name-2.md, name-3.md, … Returns its path."""
    candidate, number = path, 2
    while True:
        try:
            with open(candidate, "x", encoding="utf-8") as file:
                file.write(text)
            return candidate
        except FileExistsError:
            candidate, number = path.with_name(f"{path.stem}-{number}{path.suffix}"), number + 1


def _filled(sentence: str, read: str) -> str:
    return sentence.replace("{}", read)


def _markdown_link(text: str, href: str) -> str:
    return f"[{_cell(text)}]({href})"


def _cell(text: str) -> str:
    """Text in a Markdown table: one line, its bars kept."""
    return " ".join(text.split()).replace("|", "\\|")


MARKDOWN = Markup(_cell, str, _markdown_link, "<br>")
HTML = Markup(inline, lambda text: f'<span style="{QUIET}">{html.escape(text)}</span>', anchor, "<br/>", marks=True)


def sheet_html(sheet: Sheet) -> str:
    """A row for each card and the drill, topics, next steps. Its colours are the page's: it reads in dark and light."""
    head = "".join(f'<th scope="col" style="{CELL}">{name}</th>' for name in sheet.columns)
    rows = "".join(_row(sheet, number, item) for number, item in enumerate(sheet.items, start=1))
    said = "".join(f'<p style="margin:.3em 0"><b>{html.escape(line)}</b></p>' for line in sheet.summary)
    heading, text = sheet.closing
    said += f'<p style="margin:.8em 0 .2em"><b>{heading}</b></p>{paragraphs(text)}' if text else ""
    comma = sheet.say("comma")
    steps = "".join(
        f"<li>{inline(sentence).replace('{}', comma.join(anchor(*one) for one in links))}</li>"
        for sentence, links in sheet.steps()
    )
    return (
        f'<div lang="{sheet.language}" style="max-width:64em"><h3>{html.escape(sheet.heading)}</h3>'
        f'<table style="border-collapse:collapse;margin:.4em 0">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{said}"
        f'<p style="margin:.8em 0 .2em"><b>{sheet.say("next")}</b></p><ul style="margin:.2em 0">{steps}</ul></div>'
    )


def _row(sheet: Sheet, number: int, item: Item) -> str:
    extra = {column: ";white-space:nowrap" for column in sheet.NARROW} | {n: ";min-width:9em" for n in sheet.ROOMY}
    styles = [CELL + extra.get(column, "") for column in range(len(sheet.columns))]
    cells = sheet.cells(number, item, HTML)
    return (
        "<tr>"
        + "".join(f'<td style="{style}">{cell}</td>' for style, cell in zip(styles, cells, strict=True))
        + "</tr>"
    )
