"""Drills and the mock interview in a terminal: the program is written in a file, Enter hands it to the lab's check."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from helpers.interview.drills import Attempt, Drill, Outcome, drills
from helpers.interview.mock import CARD_SECONDS, MockInterview
from helpers.interview.screen import Over, Screen
from helpers.interview.sheet import Sheet
from helpers.interview.sitting import SKIP, show_answer
from helpers.interview.stopwatch import Stopwatch, clock_text
from helpers.interview.words import say, topic_name

Check = Callable[[str, Any], Any] | None


def drill(key: str, screen: Screen, check: Check = None) -> None:
    """One drill against the clock; with an empty key, the list of them. Raises ValueError for a key that is none."""
    known = {one.key: one for one in drills()}
    if not key:
        show_drills(screen)
    elif key not in known:
        raise ValueError(say("no_drill", screen.language, given=key, known=", ".join(known)))
    else:
        attempt = Attempt(known[key], check, language=screen.language)
        with suppress(Over):
            write_and_check(attempt.drill, attempt.begin, attempt.submit, screen)
            if attempt.drill.answer:
                screen.say("drill.answer", "bold")
                screen.block(attempt.drill.answer)
        screen.say("drill_over", time=clock_text(attempt.watch.seconds))


def show_drills(screen: Screen) -> None:
    """Keys, minutes and titles."""
    for one in drills():
        minutes = say("minutes", screen.language, count=one.minutes)
        screen.text(f"{one.title.in_(screen.language)} · {minutes}", first=f"  {one.key:<24} ")
    screen.line()
    screen.say("drill_how", key=drills()[0].key)


def mock(screen: Screen, check: Check = None, *, level: str | None = None, topics: list[str] | None = None) -> None:
    """Five cards and a drill, then the sheet, also where it ended early."""
    interview = MockInterview(level=level, topics=topics or (), language=screen.language, check=check)
    drill_title = interview.drill.title.in_(screen.language)
    minutes = clock_text(CARD_SECONDS), clock_text(interview.attempt.watch.limit)
    screen.say("mock_welcome", each=minutes[0], drill=drill_title, limit=minutes[1])
    try:
        screen.ask(say("ask_begin", screen.language))
        interview.begin()
        _cards(interview, screen)
        write_and_check(interview.drill, lambda: None, interview.submit, screen)
    except (Over, KeyboardInterrupt):
        pass
    hand_over(interview.finish(), interview.note, screen)


def _cards(interview: MockInterview, screen: Screen) -> None:
    for number, card in enumerate(interview.cards, start=1):
        screen.line()
        screen.rule()
        place = say("place", screen.language, number=number, total=len(interview.cards))
        screen.line(
            " · ".join([place, topic_name(card.topic, screen.language), say(card.level, screen.language)]), "quiet"
        )
        screen.line()
        screen.text(card.question.in_(screen.language), style="bold")
        screen.line()
        if screen.ask(say("ask_unfold", screen.language)).lower() in SKIP:
            interview.skip()
            continue
        watch = interview.watch
        interview.reveal()
        tell_time(watch, screen)
        show_answer(card, screen)
        _rate(interview, screen)


def _rate(interview: MockInterview, screen: Screen) -> None:
    while True:
        try:
            return interview.rate(screen.ask(say("ask_mock_rating", screen.language)))
        except ValueError as error:
            screen.text(str(error))


def write_and_check(one: Drill, begin: Callable[[], Any], submit: Callable[[Any], Outcome], screen: Screen) -> None:
    """Show the task, lay its beginning into a file, and check the file each time Enter is pressed, until it passes."""
    _show_drill(one, screen)
    path = _lay_stub(one, screen)
    begin()
    while True:
        typed = screen.ask(say("ask_check", screen.language, path=path))
        if typed.lower() in SKIP:
            return
        path = Path(typed).expanduser() if typed else path
        try:
            answer = load(path, one.name, screen.language)
        except ValueError as error:
            screen.block(str(error))
            continue
        if _is_untouched(path, one):
            screen.say("untouched", path=path)
            continue
        screen.say("checking", "quiet")
        try:
            outcome = submit(answer)
        except KeyboardInterrupt:
            screen.line()
            screen.say("check_cut")
            continue
        screen.block(outcome.said)
        for text in filter(None, (outcome.text, outcome.note)):
            screen.text(text, style="right" if outcome.passed else "wrong")
        if outcome.passed:
            return


def _is_untouched(path: Path, one: Drill) -> bool:
    """Whether this is the beginning as we laid it, on which no rank need be started."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8").strip() == one.stub.strip()
    return False


def load(path: Path, name: str, language: str | None = None) -> Any:
    """The function or class of this name in a file, run anew each time. Raises ValueError for what is wrong with it."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(say("no_answer_file", language, path=path, reason=error)) from None
    namespace: dict[str, Any] = {"__name__": "drill", "__file__": str(path)}  # no module: ranks get it by value
    try:
        exec(compile(source, str(path.resolve()), "exec"), namespace)
    except (Exception, SystemExit) as error:
        last = "".join(traceback.format_exception_only(error)).strip()
        line = _line(error, str(path.resolve()))
        raise ValueError(say("answer_fails", language, path=path, line=line, reason=last)) from None
    if name not in namespace:
        raise ValueError(say("no_name", language, path=path, name=name))
    return namespace[name]


def _line(error: BaseException, file: str) -> int | str:
    """The line of the learner's file in which it went wrong."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return lines[-1] if lines else getattr(error, "lineno", None) or "?"


def _show_drill(one: Drill, screen: Screen) -> None:
    screen.line()
    screen.rule()
    minutes = say("minutes", screen.language, count=one.minutes)
    screen.line(" · ".join([one.key, one.title.in_(screen.language), minutes]), "bold")
    screen.line()
    screen.text(one.prompt.in_(screen.language))
    screen.line()
    for what in one.counts:
        screen.text(what.in_(screen.language), first="  - ")
    screen.line()


def _lay_stub(one: Drill, screen: Screen) -> Path:
    """A file with the beginning of the answer in the folder at hand. One that is there stays as it is."""
    path = Path(f"drill_{one.key.replace('.', '_')}.py")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(one.stub)
        screen.say("stub_laid", path=path)
    except FileExistsError:
        screen.say("stub_there", path=path)
    except OSError as error:
        screen.say("stub_failed", path=path, reason=error.strerror or error)
        screen.block(one.stub)
    screen.line()
    return path


def tell_time(watch: Stopwatch, screen: Screen) -> None:
    """What was used of the time, once its clock stands still."""
    key = "mock_over" if watch.is_over else "mock_time"
    screen.say(key, "quiet", used=clock_text(watch.seconds), limit=clock_text(watch.limit))


def hand_over(sheet: Sheet, note: str, screen: Screen) -> None:
    """The end of an interview or a round: what could not be noted, the sheet, and a file of it if a name is given."""
    if note:
        screen.text(note, style="wrong")
    screen.line()
    screen.rule()
    for line in sheet.text.splitlines():
        is_row = re.match(r"\s|\d+\. |- ", line)  # its lines hang; prose begins each line at the left
        screen.block(screen.coded(line)) if is_row else screen.text(line)
    screen.line()
    while True:
        try:
            name = screen.ask(say("ask_save", screen.language))
            if name:
                screen.say("saved", path=sheet.save(name))
            return
        except Over:
            return
        except (ValueError, OSError) as error:
            screen.text(str(error))
