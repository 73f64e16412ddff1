"""The sheet after a mock interview: times, ratings, strong and weak topics, where to read on. Text, HTML, Markdown."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.interview.cards import Card, Cell
from helpers.interview.drills import Attempt, Drill
from helpers.interview.links import file_address, link
from helpers.interview.stopwatch import Stopwatch, clock_text
from helpers.interview.words import say

STRONG, WEAK = ("good", "easy", "passed"), ("again", "hard", "skipped", "not_passed", "no_answer")
SUFFIXES = (".md", ".html", ".txt")
WORDS = {
    "en": {
        "title": "Mock interview", "seed": " (seed {})", "columns": ("", "question", "time", "of", "rating", "read"),
        "strong": "Strong", "weak": "Weak", "none": "none yet", "next": "Next steps", "over": " (over time)",
        "drill": "drill", "not_reached": "not reached", "passed": "passed", "not_passed": "not passed",
        "no_answer": "no answer", "comma": ", ", "chapter": "chapter {}", "lab": "lab {}",
        "read_on": "Read {}. ", "ask_again": "Then ask yourself again: `python -m helpers quiz --topic {}`.",
        "write_again": "Write it once more tomorrow: `python -m helpers quiz --drill {}`.",
        "go_on": "Nothing was weak. Take the next one with another seed, or a level higher.",
        "begin": "Nothing was answered. Begin with one card: say your answer aloud, then look.",
    },
    "zh": {
        "title": "模拟面试", "seed": "（种子 {}）", "columns": ("", "题目", "用时", "限时", "自评", "阅读"),
        "strong": "强项", "weak": "弱项", "none": "暂无", "next": "下一步", "over": "（超时）", "drill": "手写题",
        "not_reached": "未做到", "passed": "通过", "not_passed": "未通过", "no_answer": "未作答",
        "comma": "、", "chapter": "{} 章", "lab": "实验 {}",
        "read_on": "先读 {}。", "ask_again": "再用 `python -m helpers quiz --topic {} --lang zh` 自测。",
        "write_again": "明天再写一遍：`python -m helpers quiz --drill {} --lang zh`。",
        "go_on": "没有弱项。换一个种子再来一场，或者提高一级。",
        "begin": "还没有作答。先从一张卡片开始：出声回答，然后再看答案。",
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Item:
    """One card or the drill. state: a key of WORDS, a rating or "skipped". links: text, href.

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
    text = getattr(card.question, language)
    return Item(
        kind="card", key=card.id, title=text, topic=card.topic, level=card.level, state=state, limit=watch.limit,
        seconds=watch.seconds if watch.began else None, links=_links(card, language),
    )  # fmt: skip


def drill_item(drill: Drill, attempt: Attempt, language: str) -> Item:
    """The drill as it went."""
    state = "passed" if attempt.passed else "not_passed" if attempt.outcomes else "no_answer"
    return Item(
        kind="drill", key=drill.key, title=getattr(drill.title, language), topic=drill.topic, level="",
        state=state if attempt.watch.began else "not_reached", limit=attempt.watch.limit,
        seconds=attempt.watch.seconds if attempt.watch.began else None, links=drill.places(language=language),
    )  # fmt: skip


def _links(card: Card, language: str) -> tuple[tuple[str, str], ...]:
    """The cell or source that shows it, the chapter where that is no cell of it, the lab: those that are there."""
    files = {"chapter": f"{card.chapter}.ipynb", "lab": f"labs/{card.chapter}.ipynb"}
    if isinstance(card.shown_by, Cell) and card.shown_by.notebook == card.chapter:
        del files["chapter"]
    found = [
        (WORDS[language][word].format(card.chapter), href)
        for word, path in files.items()
        if (href := file_address(path))
    ]
    return (link(card, language=language), *found)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What `MockInterview.sheet` is. `text`, `markdown()`, HTML in a notebook; `save("sheet.md")` keeps it."""

    items: tuple[Item, ...]
    language: str
    seed: int

    @property
    def words(self) -> dict[str, Any]:
        """Of its language."""
        return WORDS[self.language]

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
        return self.words["title"] + self.words["seed"].format(self.seed)

    @property
    def summary(self) -> tuple[str, str]:
        """Two lines: strong topics and weak topics."""
        words = self.words
        return tuple(
            words[name] + say("colon", self.language) + (words["comma"].join(topics) or words["none"])
            for name, topics in (("strong", self.strong), ("weak", self.weak))
        )

    def steps(self) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
        """What to do next, one step a weak topic: a sentence, and the links that stand in its place `{}`."""
        steps: dict[str, tuple[tuple[str, str], ...]] = {}
        for item in self.items:
            if item.is_weak:
                found = item.links[:1] if item.kind == "card" else item.links
                steps[self._step(item)] = tuple(dict.fromkeys((*steps.get(self._step(item), ()), *found)))
        return list(steps.items()) or [(self.words["go_on" if self.strong else "begin"], ())]

    def _step(self, item: Item) -> str:
        last = "write_again" if item.kind == "drill" else "ask_again"
        return self.words["read_on"] + self.words[last].format(item.key if item.kind == "drill" else item.topic)

    def time(self, item: Item) -> str:
        """Taken, with a word where it was more than the limit."""
        if item.seconds is None:
            return "–"
        return clock_text(item.seconds) + (self.words["over"] if item.is_over else "")

    def tag(self, item: Item) -> str:
        """Topic and level, or that it is the drill."""
        return f"{item.topic} · {item.level or self.words['drill']}"

    def state(self, item: Item) -> str:
        """Its rating or what became of it, in words."""
        return self.words.get(item.state) or say(item.state, self.language)

    @property
    def text(self) -> str:
        """All of it as plain text."""
        lines = [self.heading, ""]
        for number, item in enumerate(self.items, start=1):
            told = f"{self.time(item)} / {clock_text(item.limit)} · {self.state(item)}"
            lines += [f"{number}. {item.title}", f"   {self.tag(item)} · {told}"]
            lines += [f"   {text}{say('colon', self.language)}{href}" for text, href in item.links]
        lines += ["", *self.summary, "", self.words["next"]]
        comma = self.words["comma"]
        steps = [_filled(sentence, comma.join(text for text, _ in links)) for sentence, links in self.steps()]
        return "\n".join(lines + [f"- {step}" for step in steps])

    def __repr__(self) -> str:
        return self.text

    def markdown(self) -> str:
        """For a file or a Markdown cell."""
        columns = self.words["columns"]
        lines = [f"# {self.heading}", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        for number, item in enumerate(self.items, start=1):
            read = "<br>".join(_markdown_link(*one) for one in item.links)
            title = f"{_cell(item.title)}<br>{self.tag(item)}"
            cells = (str(number), title, self.time(item), clock_text(item.limit), self.state(item), read)
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", *(f"**{line}**  " for line in self.summary), "", f"## {self.words['next']}", ""]
        comma = self.words["comma"]
        steps = [
            _filled(sentence, comma.join(_markdown_link(*one) for one in links)) for sentence, links in self.steps()
        ]
        return "\n".join(lines + [f"- {step}" for step in steps]) + "\n"

    def _repr_html_(self) -> str:
        from helpers.interview.sheet_html import sheet_html

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
