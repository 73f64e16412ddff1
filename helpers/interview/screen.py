"""Writing to a terminal and asking: paragraphs that fit its width, colour only where there is one to see it."""

from __future__ import annotations

import os
import re
import shutil
import sys

from helpers.interview.words import say
from helpers.learner.words.wrapping import wrap

WIDEST = 88  # columns: longer lines are hard to read
STYLES = {"bold": "1", "quiet": "2", "right": "32", "wrong": "31", "code": "36"}


class Over(Exception):
    """The learner has ended it: q, Ctrl-D, Ctrl-C, or the end of what was piped in."""


class Screen:
    """One language on standard input and output. colour: None asks the terminal and NO_COLOR."""

    def __init__(self, language: str, colour: bool | None = None):
        self.language = language
        self.colour = _wants_colour() if colour is None else colour
        for stream in (sys.stdin, sys.stdout):  # a terminal that cannot show a character shows a question mark
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")

    @property
    def columns(self) -> int:
        """Of the terminal as it is now; at most 88."""
        return max(24, min(shutil.get_terminal_size().columns, WIDEST))

    def say(self, key: str, style: str = "", /, **values: object) -> None:
        """A sentence of the interface as a paragraph of its own."""
        self.text(say(key, self.language, **values), style=style)

    def text(self, text: str, *, first: str = "", style: str = "") -> None:
        """Paragraphs, wrapped; `first` stands before the first line, and the others are indented as much."""
        for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
            if number:
                self.line()
            for line in wrap(self.marked(paragraph), self.columns, first=" " * len(first) if number else first):
                self.line(line, style)

    def line(self, line: str = "", style: str = "") -> None:
        """One line as it is."""
        print(self.styled(line, style) if line else "")

    def block(self, text: str) -> None:
        """Lines that are laid out already, such as a sheet or a program; one that is too long goes on, indented."""
        for line in text.splitlines():
            indent = line[: len(line) - len(line.lstrip())]
            for part in wrap(line, self.columns, first=indent, rest=indent + "  ", cut=False):
                self.line(part)

    def rule(self) -> None:
        """A line across."""
        self.line("─" * min(self.columns, 60), "quiet")

    def ask(self, prompt: str) -> str:
        """What is typed after a prompt, without the spaces around. Raises Over for q and at the end of the input."""
        *lines, last = wrap(prompt, self.columns - 1)
        try:
            for line in lines:
                self.line(line, "bold")
            typed = input(self.styled(last, "bold") + " ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            raise Over from None
        if not sys.stdin.isatty():
            print()  # nobody pressed Enter here
        if typed.lower() in ("q", "quit", "exit", "退出"):
            raise Over
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
        if not self.colour or not style:
            return text
        on = f"\x1b[{STYLES[style]}m"
        return on + text.replace("\x1b[0m", f"\x1b[0m{on}") + "\x1b[0m"


def _wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "", None)
