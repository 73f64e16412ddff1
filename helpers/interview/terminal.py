"""Plays a conversation in a terminal: `play_in_terminal(talk, screen)` writes its steps and reads the replies.

A `Talk` (steps.py) is a quiz, a mock interview, a round, a drill or a dialogue. `TerminalScreen` writes paragraphs that
fit the terminal's width, and colour only where a terminal shows it. A program is written in a file, which Enter passes
on. `words(key, language, **values)` is a sentence of the quiz, and `round_words` one of the rounds.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from helpers.interview.cards import words
from helpers.interview.drills import clock_text
from helpers.interview.steps import FINISH, Ask, Reply, Show, Step, Talk, Tell, TextPart
from helpers.learner.words import book
from helpers.learner.words.wrapping import aligned, width, wrap

WIDEST = 88  # columns of text, also where the terminal has more, because longer lines are hard to read
STYLES = {"bold": "1", "quiet": "2", "right": "32", "wrong": "31", "problem": "31", "code": "36"}  # -> ANSI escape
NOT_PRINTED = ("own", "stub", "explained_by")  # names of parts: what was typed, is in a file, or leads to a solution
HELP, MORE, SKIP = ("?", "？", "help", "帮助"), ("m", "more", "更多"), ("s", "skip", "跳过")
HINT, ALL = ("h", "hint", "提示"), ("a", "all", "全部")
YES, NO = ("y", "yes", "是", "对"), ("n", "no", "否", "不是", "")  # "": Enter alone means no
round_words = book("round")


class Quit(Exception):
    """The learner wants to stop: q, Ctrl-D, Ctrl-C, or the end of what was piped in."""


# -- lines -----------------------------------------------------------------------------------------------------------
class TerminalScreen:
    """Standard input and output in one language. colour: None asks the terminal and the variable NO_COLOR."""

    def __init__(self, language: str, colour: bool | None = None):
        self.language = language
        self.colour = _wants_colour() if colour is None else colour
        self._is_blank = False  # whether the last line was empty
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
        self._is_blank = not line

    def gap(self) -> None:
        """Print an empty line, unless the last one was empty."""
        if not self._is_blank:
            self.line()

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
        """Print a horizontal line, then these parts, if there are any, on one line."""
        self.gap()
        self.rule()
        if any(parts):
            self.line(" · ".join(parts), "quiet")
            self.line()

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Print a table in columns, or with bars between its cells where the terminal is too narrow for columns."""
        lines = [f"  {line.rstrip()}" for line in aligned(rows, left=len(rows[0]))]
        if max(map(width, lines)) <= self.columns:
            for line in lines:
                self.line(line)
        else:
            for row in rows:
                self.text(" | ".join(filter(None, row)), first="  ")

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
        self._is_blank = False
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
        """The text in a style, if it is one of STYLES and there is colour."""
        if not self.colour or style not in STYLES:
            return text
        on, off = f"\x1b[{STYLES[style]}m", "\x1b[0m"
        return on + text.replace(off, off + on) + off  # after a style inside the text, this one goes on


def _wants_colour() -> bool:
    """Whether standard output is a terminal that shows colour, and the learner has not set NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "", None)


# -- the player ------------------------------------------------------------------------------------------------------
def play_in_terminal(talk: Talk, screen: TerminalScreen) -> None:
    """Play the conversation to its end. When the learner stops early, the talk still tells or shows what it has."""
    player, steps = _Player(talk.kind, screen), talk.steps()
    with suppress(StopIteration):
        reply = None
        while True:
            reply = player.take(steps.send(reply))


class _Player:
    """Writes each step and reads the reply. What was printed once, such as the parts of a question, is not repeated."""

    def __init__(self, kind: str, screen: TerminalScreen):
        self.kind, self.screen = kind, screen
        self._last = Ask(form="")  # the question before
        self._parts: list[TextPart] = []  # those that were shown, or are folded, since the last question began
        self._has_new_parts = False  # whether parts were printed since the last reply

    def take(self, step: Step) -> Reply | None:
        """Write a step; the reply if it is a question."""
        if isinstance(step, Tell):
            return self._tell(step)
        if isinstance(step, Show):
            return show_document(step, self.screen)
        self._show_question(step)
        try:
            reply = getattr(self, f"_ask_{step.form}", self._ask_line)(step)
        except Quit:
            reply = Reply(action=FINISH)
        self._last, self._has_new_parts = step, False
        return reply

    def _word(self, key: str, **values: object) -> str:
        return words(key, self.screen.language, **values)

    # -- what is shown -------------------------------------------------------------------------------------------------
    def _tell(self, step: Tell) -> None:
        if step.heading:
            self.screen.heading(*step.heading)
        self.screen.block(step.output)
        text = step.text
        if step.style == "intro":  # the terminal adds what its keys do
            text += self._word("between") + self._word(f"keys.{self.kind}")
        if step.style in ("right", "wrong") and not step.output:
            self.screen.gap()
        if text:
            self.screen.text(text, style=step.style)
        self._show_parts(step.parts)

    def _show_question(self, step: Ask) -> None:
        """Print what is new since the question before."""
        screen, last = self.screen, self._last
        is_new = (step.heading, step.context, step.question) != (last.heading, last.context, last.question)
        if is_new:
            self._parts = []
            if step.heading:
                screen.heading(*step.heading)
            if step.context not in ("", last.context):
                screen.text(step.context)
                screen.gap()
            if step.question:
                screen.text(step.question, style="bold")
                screen.gap()
        if is_new and step.form == "choice":
            for option in step.options:
                screen.text(option.label, first=f"  {option.value}) ")
            screen.gap()
        if step.clock and step.clock.ended and not (last.clock and last.clock.ended):
            used = step.clock.ended - step.clock.began
            key = "mock_over" if used > step.clock.limit else "mock_time"
            screen.say(key, "quiet", used=clock_text(used), limit=clock_text(step.clock.limit))
        self._show_parts(step.parts)
        if step.problem:
            screen.text(step.problem)

    def _show_parts(self, parts: Sequence[TextPart]) -> None:
        """Print the parts that were not printed yet; those that are folded wait until they are asked for."""
        new = [part for part in parts if part not in self._parts]
        self._parts += new
        shown = [part for part in new if not part.is_folded and part.name not in NOT_PRINTED]
        for part in shown:
            self._show_part(part)
        if shown:
            self.screen.gap()
            self._has_new_parts = True

    def _show_part(self, part: TextPart) -> None:
        screen = self.screen
        screen.gap()
        if part.name == "counts":
            for item in part.items:
                screen.text(item, first="  - ")
        elif part.name in ("usual_mistake", "follow_ups"):
            text = self._word("between").join(part.texts)
            screen.text(f"**{part.label}**{self._word('colon')}{text}")
        elif part.name == "shown_by":
            screen.text(self._word("shown_by", place=part.text), style="quiet")
            screen.line(f"  {part.link}" if "://" in part.link else f"  notebooks/{part.link}", "quiet")
        elif part.name == "code":
            screen.line(part.label, "bold")
            screen.block(part.text)
        else:
            if part.name in ("task", "interviewer", "candidate"):
                screen.text(part.label, style="bold")
            screen.text(part.text, style="bold" if part.name == "question" else "")
            if part.rows:
                screen.gap()
                screen.table(part.rows)

    # -- what is asked -------------------------------------------------------------------------------------------------
    def _ask_line(self, step: Ask) -> Reply:
        """Of the forms "choice", "rating", "number" and "text": the line that is typed, which is not empty."""
        while not (reply := self._ask_ready(step)).value and not reply.action:
            pass
        return reply

    def _ask_ready(self, step: Ask) -> Reply:
        """What is typed, after the commands ? and m of a card were served."""
        while True:
            typed = self.screen.ask(step.prompt)
            if typed.lower() in SKIP and step.has_action("skip"):
                return Reply(action="skip")
            if not step.question or typed.lower() not in (*HELP, *MORE):
                return Reply(typed)
            if typed.lower() in HELP:
                self.screen.say("help")
            else:
                self._show_more()

    def _ask_pause(self, step: Ask) -> Reply:
        """Wait if something was printed that wants to be read."""
        return self._ask_ready(step) if self._has_new_parts else Reply()

    def _show_more(self) -> None:
        """Print the parts that were folded so far: the longer answer, and what an interviewer asks next."""
        if not self._parts:
            self.screen.say("more_later")
        for part in [part for part in self._parts if part.is_folded]:
            self._show_part(part)
        self.screen.gap()

    def _ask_notes(self, step: Ask) -> Reply:
        typed = self.screen.ask(step.prompt)
        return Reply(action="all") if typed.lower() in ALL else Reply(typed)

    def _ask_lines(self, step: Ask) -> Reply:
        """Mark a line ("7 why it is wrong"), take a mark back ("-7"), show a hint ("h"), or hand in ("")."""
        if step.code != self._last.code:
            for number, line in enumerate(step.code.splitlines(), start=1):
                self.screen.line(f"{self.screen.styled(f'{number:>3}', 'quiet')}  {line}".rstrip())
            self.screen.gap()
            self.screen.text(round_words("how_to_mark", self.screen.language))
            self.screen.gap()
        elif step.marks != self._last.marks:
            key = "marked" if step.marks else "none_marked"
            self.screen.text(round_words(key, self.screen.language, lines=sorted(step.marks)))
        typed = self.screen.ask(step.prompt)
        if not typed:
            return Reply()
        if typed.lower() in HINT:
            return Reply(action="hint")
        # A minus sign or none, a number (or another word, which the round refuses), and the reason.
        minus, line, why = re.fullmatch(r"(-?)\s*(\d+|\S+)\W*(.*)", typed, re.DOTALL).groups()
        return Reply(int(line), "unmark") if minus and line.isdecimal() else Reply((line, why), "mark")

    def _ask_agree(self, step: Ask) -> Reply:
        """Ask for each option whether the learner agrees."""
        agreed = []
        for option in step.options:
            self.screen.gap()
            self.screen.text(option.details)
            while (typed := self.screen.ask(step.prompt).lower()) not in (*YES, *NO):
                self.screen.text(round_words("bad_held", self.screen.language, given=typed))
            agreed += [option.value] if typed in YES else []
        return Reply(agreed)

    def _ask_code(self, step: Ask) -> Reply:
        """Write the stub into a file once, then pass on what the file defines each time Enter is pressed."""
        if step.code != self._last.code:
            self._file = _write_stub(step, self.screen)
        if step.has_action("begin"):
            return Reply(action="begin")
        while True:
            typed = self.screen.ask(self._word("ask_check", path=self._file))
            if typed.lower() in SKIP:
                return Reply(action="give_up")
            self._file = Path(typed).expanduser() if typed else self._file
            try:
                answer = load_answer(self._file, step.name, self.screen.language)
            except ValueError as error:
                self.screen.block(str(error))
                continue
            if not _is_unchanged(self._file, step.code):
                self.screen.say("checking", "quiet")
                return Reply(answer)
            self.screen.say("untouched", path=self._file)


def show_document(step: Show, screen: TerminalScreen) -> None:
    """Print a document, and save it if the learner types a name."""
    screen.gap()
    if step.can_save:
        screen.rule()
    for line in step.document.text.splitlines():
        is_row = re.match(r"\s|\d+\. |- ", line)  # a row is indented when it continues, a paragraph is not
        screen.block(screen.coded(line)) if is_row else screen.text(line)
    screen.gap()
    while step.can_save:
        try:
            name = screen.ask(words("ask_save", screen.language))
            if name:
                screen.say("saved", path=step.document.save(name))
            return
        except Quit:
            return
        except (ValueError, OSError) as error:
            screen.text(str(error))


# -- the file of a drill ---------------------------------------------------------------------------------------------
def _is_unchanged(path: Path, stub: str) -> bool:
    """Whether the file still is the stub. Then it is not checked, because a check starts ranks and takes time."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8").strip() == stub.strip()
    return False


def load_answer(path: Path, name: str, language: str | None = None) -> Any:
    """The function or class of this name in a file, which is run anew each time. Raises ValueError where that fails."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(words("no_answer_file", language, path=path, reason=error)) from None
    # No module has the name "drill", so a function of this namespace is sent to the ranks by value.
    namespace: dict[str, Any] = {"__name__": "drill", "__file__": str(path)}
    try:
        exec(compile(source, str(path.resolve()), "exec"), namespace)
    except (Exception, SystemExit) as error:
        last = "".join(traceback.format_exception_only(error)).strip()
        line = _line_of(error, str(path.resolve()))
        raise ValueError(words("answer_fails", language, path=path, line=line, reason=last)) from None
    if name not in namespace:
        raise ValueError(words("no_name", language, path=path, name=name))
    return namespace[name]


def _line_of(error: BaseException, file: str) -> int | str:
    """The line of the learner's file in which the error was raised; "?" if it has none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return lines[-1] if lines else getattr(error, "lineno", None) or "?"


def _write_stub(step: Ask, screen: TerminalScreen) -> Path:
    """Write the program to complete to a file in the working directory, unless that exists; returns its path."""
    path = Path(f"drill_{step.heading[0].replace('.', '_')}.py")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(step.code)
        screen.say("stub_laid", path=path)
    except FileExistsError:
        screen.say("stub_there", path=path)
    except OSError as error:
        screen.say("stub_failed", path=path, reason=error.strerror or error)
        screen.block(step.code)
    screen.line()
    return path
