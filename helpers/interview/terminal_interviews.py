"""Plays drills, mock interviews, rounds and dialogues in a terminal, on the `TerminalScreen` of `terminal.py`.

A drill is a program to write against the clock: it is written in a file, and Enter passes it to the lab's check. A mock
interview is five cards and a drill. In a round, wrong lines of a log or of code are marked by their numbers, or
questions on a training plan are answered. A dialogue is a worked interview, shown turn by turn. `quiz_command.py` calls
`run_drill`, `run_mock_interview`, `run_round` and `run_dialogue`.

`screen.say(key, **values)` prints the sentence of this key in the learner's language, `screen.text` a paragraph,
`screen.line` one line, `screen.block` lines as they are; `screen.ask(prompt)` returns what is typed and raises Quit for
q. `words(key, language, **values)` is a sentence of the quiz, and `round_words` one of the rounds.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from helpers.interview.cards import topic_name, words
from helpers.interview.dialogues import (
    Dialogue,
    DialogueStep,
    dialogue,
    dialogue_names,
    scorecard_text,
    speaker,
    write_page,
)
from helpers.interview.dialogues import words as dialogue_words
from helpers.interview.drills import Attempt, Drill, DrillOutcome, Judge, Stopwatch, clock_text, drills
from helpers.interview.mock import CARD_SECONDS, MockInterview
from helpers.interview.round_attempt import (
    DesignAttempt,
    MarkingAttempt,
    best_results,
    choose_round,
    new_attempt,
)
from helpers.interview.round_items import rounds
from helpers.interview.round_items import words as round_words
from helpers.interview.sheet import Sheet
from helpers.interview.terminal import SKIP, Quit, TerminalScreen, show_answer
from helpers.learner.words.wrapping import aligned, width

HINT = ("h", "hint", "提示")
ALL = ("a", "all", "全部")
YES, NO = ("y", "yes", "是", "对"), ("n", "no", "否", "不是", "")  # "": Enter alone means no


# -- drills ----------------------------------------------------------------------------------------------------------
def run_drill(key: str, screen: TerminalScreen, check: Judge | None = None) -> None:
    """One drill against the clock, or the list of drills for an empty key. Raises ValueError for an unknown key.

    check: `(key, answer) -> verdict`, which judges the program.
    """
    known = {one.key: one for one in drills()}
    if not key:
        show_drills(screen)
    elif key not in known:
        raise ValueError(words("no_drill", screen.language, given=key, known=", ".join(known)))
    else:
        attempt = Attempt(known[key], check, language=screen.language)
        with suppress(Quit):
            write_and_check(attempt.drill, attempt.begin, attempt.submit, screen)
            if attempt.drill.answer:
                screen.say("drill.answer", "bold")
                screen.block(attempt.drill.answer)
        screen.say("drill_over", time=clock_text(attempt.watch.seconds))


def show_drills(screen: TerminalScreen) -> None:
    """Print the keys, minutes and titles of all drills."""
    for one in drills():
        minutes = words("minutes", screen.language, count=one.minutes)
        screen.text(f"{one.title.in_(screen.language)} · {minutes}", first=f"  {one.key:<24} ")
    screen.line()
    screen.say("drill_how", key=drills()[0].key)


def write_and_check(
    drill: Drill, begin: Callable[[], Any], submit: Callable[[Any], DrillOutcome], screen: TerminalScreen
) -> None:
    """Show the task, write its stub into a file, and check the file each time Enter is pressed, until it passes.

    begin: starts the clock. submit: checks an answer. Another file may be typed instead of Enter.
    """
    _show_drill(drill, screen)
    path = _write_stub(drill, screen)
    begin()
    while True:
        typed = screen.ask(words("ask_check", screen.language, path=path))
        if typed.lower() in SKIP:
            return
        path = Path(typed).expanduser() if typed else path
        try:
            answer = load_answer(path, drill.name, screen.language)
        except ValueError as error:
            screen.block(str(error))
            continue
        if _is_unchanged(path, drill):
            screen.say("untouched", path=path)
            continue
        screen.say("checking", "quiet")
        try:
            outcome = submit(answer)
        except KeyboardInterrupt:
            screen.line()
            screen.say("check_cut")
            continue
        screen.block(outcome.output)
        for text in filter(None, (outcome.text, outcome.note)):
            screen.text(text, style="right" if outcome.passed else "wrong")
        if outcome.passed:
            return


def _is_unchanged(path: Path, drill: Drill) -> bool:
    """Whether the file still is the stub. Then it is not checked, because a check starts ranks and takes time."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8").strip() == drill.stub.strip()
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


def _show_drill(drill: Drill, screen: TerminalScreen) -> None:
    """Print the key, the title and the minutes of a drill, its task, and what is checked."""
    screen.line()
    screen.rule()
    minutes = words("minutes", screen.language, count=drill.minutes)
    screen.line(" · ".join([drill.key, drill.title.in_(screen.language), minutes]), "bold")
    screen.line()
    screen.text(drill.prompt.in_(screen.language))
    screen.line()
    for requirement in drill.counts:
        screen.text(requirement.in_(screen.language), first="  - ")
    screen.line()


def _write_stub(drill: Drill, screen: TerminalScreen) -> Path:
    """Write the stub to a file in the working directory, unless that exists; returns its path."""
    path = Path(f"drill_{drill.key.replace('.', '_')}.py")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(drill.stub)
        screen.say("stub_laid", path=path)
    except FileExistsError:
        screen.say("stub_there", path=path)
    except OSError as error:
        screen.say("stub_failed", path=path, reason=error.strerror or error)
        screen.block(drill.stub)
    screen.line()
    return path


# -- the mock interview ----------------------------------------------------------------------------------------------
def run_mock_interview(
    screen: TerminalScreen, check: Judge | None = None, *, level: str | None = None, topics: list[str] | None = None
) -> None:
    """Five cards and a drill, then the sheet, also when the learner stops early."""
    interview = MockInterview(level=level, topics=topics or (), language=screen.language, check=check)
    drill_title = interview.drill.title.in_(screen.language)
    minutes = clock_text(CARD_SECONDS), clock_text(interview.attempt.watch.limit)
    screen.say("mock_welcome", each=minutes[0], drill=drill_title, limit=minutes[1])
    try:
        screen.ask(words("ask_begin", screen.language))
        interview.begin()
        _ask_cards(interview, screen)
        # `lambda: None` in place of `begin`: the drill's clock has been running since the last card was rated.
        write_and_check(interview.drill, lambda: None, interview.submit, screen)
    except (Quit, KeyboardInterrupt):
        pass
    show_and_save_sheet(interview.finish(), interview.note, screen)


def _ask_cards(interview: MockInterview, screen: TerminalScreen) -> None:
    """Show each card's question, take the time until the answer is unfolded, and take the learner's rating."""
    for number, card in enumerate(interview.cards, start=1):
        position = words("place", screen.language, number=number, total=len(interview.cards))
        screen.heading(position, topic_name(card.topic, screen.language), words(card.level, screen.language))
        screen.text(card.question.in_(screen.language), style="bold")
        screen.line()
        if screen.ask(words("ask_unfold", screen.language)).lower() in SKIP:
            interview.skip()
            continue
        watch = interview.watch
        interview.reveal()  # stops the clock
        show_time(watch, screen)
        show_answer(card, screen)
        _ask_until_readable(interview.rate, words("ask_mock_rating", screen.language), screen)


def _ask_until_readable(take: Callable[[str], Any], prompt: str, screen: TerminalScreen) -> Any:
    """What `take` returns for the first typed line for which it does not raise ValueError; errors are printed."""
    while True:
        try:
            return take(screen.ask(prompt))
        except ValueError as error:
            screen.text(str(error))


def show_time(watch: Stopwatch, screen: TerminalScreen) -> None:
    """Print the time of a clock that was stopped, with its limit."""
    key = "mock_over" if watch.is_over else "mock_time"
    screen.say(key, "quiet", used=clock_text(watch.seconds), limit=clock_text(watch.limit))


def show_and_save_sheet(sheet: Sheet, note: str, screen: TerminalScreen) -> None:
    """End an interview or a round: print what could not be noted and the sheet, and save it if a name is typed."""
    if note:
        screen.text(note, style="wrong")
    screen.line()
    screen.rule()
    for line in sheet.text.splitlines():
        is_row = re.match(r"\s|\d+\. |- ", line)  # a row is indented when it continues, a paragraph is not
        screen.block(screen.coded(line)) if is_row else screen.text(line)
    screen.line()
    while True:
        try:
            name = screen.ask(words("ask_save", screen.language))
            if name:
                screen.say("saved", path=sheet.save(name))
            return
        except Quit:
            return
        except (ValueError, OSError) as error:
            screen.text(str(error))


# -- rounds ----------------------------------------------------------------------------------------------------------
def run_round(name: str, screen: TerminalScreen) -> None:
    """One round of this id or kind, or the list of rounds for an empty name. Raises ValueError for an unknown name."""
    if not name:
        show_rounds(screen)
        return
    attempt = new_attempt(choose_round(name, screen.language), language=screen.language)
    item = attempt.item
    kind, title = round_words(item.kind, screen.language), item.title.in_(screen.language)
    screen.text(round_words("welcome", screen.language, title=title, kind=kind, minutes=item.minutes))
    screen.line()
    try:
        screen.ask(words("ask_begin", screen.language))
        attempt.begin()
        screen.rule()
        screen.text(item.filled(item.prompt).in_(screen.language))
        screen.line()
        if isinstance(attempt, MarkingAttempt):
            _play_marking(attempt, screen)
        else:
            _play_design(attempt, screen)
    except (Quit, KeyboardInterrupt):
        pass
    show_and_save_sheet(attempt.finish(), attempt.note, screen)


def show_rounds(screen: TerminalScreen) -> None:
    """Print ids, kinds, minutes and titles of all rounds, and the best result of those that were played."""
    results = best_results()
    for one in rounds():
        minutes = words("minutes", screen.language, count=one.minutes)
        parts = [one.title.in_(screen.language), round_words(one.kind, screen.language), minutes]
        if best := results.get(one.id):
            values = {"points": best.points, "most": best.most, "time": clock_text(best.seconds), "times": best.times}
            parts.append(round_words("best", screen.language, **values))
        screen.text(" · ".join(parts), first=f"  {one.id:<24} ")
    screen.line()
    screen.text(round_words("how", screen.language, key=rounds()[0].id))


def _play_marking(attempt: MarkingAttempt, screen: TerminalScreen) -> None:
    """Take marks until an empty line is typed, then compare the reasons of the mistakes that were marked."""
    for number, line in enumerate(attempt.item.lines, start=1):
        screen.line(f"{screen.styled(f'{number:>3}', 'quiet')}  {line}".rstrip())
    screen.line()
    screen.text(round_words("how_to_mark", screen.language))
    screen.line()
    while typed := screen.ask(round_words("ask_mark", screen.language)):
        try:
            _take_mark(attempt, typed, screen)
        except ValueError as error:
            screen.text(str(error))
    attempt.hand_in()
    show_time(attempt.watch, screen)
    for index in attempt.found:
        _compare_reasons(attempt, index, screen)


def _take_mark(attempt: MarkingAttempt, typed: str, screen: TerminalScreen) -> None:
    """Mark a line ("7 why it is wrong"), take a mark back ("-7"), or show a hint ("h")."""
    if typed.lower() in HINT:
        hint = attempt.hint()
        return screen.text(round_words("hint" if hint else "no_hint", screen.language, hint=hint))
    # A minus sign or none, a number (or another word, which is refused below), and the reason.
    minus, line, why = re.fullmatch(r"(-?)\s*(\d+|\S+)\W*(.*)", typed, re.DOTALL).groups()
    if minus and line.isdecimal():
        attempt.unmark(int(line))
    else:
        attempt.mark(line, why)
    key = "marked" if attempt.marks else "none_marked"
    return screen.text(round_words(key, screen.language, lines=sorted(attempt.marks)))


def _compare_reasons(attempt: MarkingAttempt, index: int, screen: TerminalScreen) -> None:
    """Show the right reason for one mistake, and ask the learner whether their reason agrees with it."""
    mistake = attempt.item.mistakes[index]
    screen.line()
    screen.text(round_words("compare", screen.language, line=attempt.line_of(mistake)), style="right")
    screen.text(attempt.item.filled(mistake.why).in_(screen.language))
    while True:
        typed = screen.ask(round_words("ask_held", screen.language)).lower()
        if typed in (*YES, *NO):
            return attempt.confirm_reason(index, typed in YES)
        screen.text(round_words("bad_held", screen.language, given=typed))


def _play_design(attempt: DesignAttempt, screen: TerminalScreen) -> None:
    """Ask each question until an answer can be read, and show how it was judged, and why."""
    while (question := attempt.question) is not None:
        if attempt.answers:
            screen.line()
        screen.text(attempt.prompt)
        answer = _ask_until_readable(attempt.answer, round_words("ask_answer", screen.language), screen)
        screen.text(answer.sentence, style="right" if answer.points else "wrong")
        screen.text(attempt.text(question.why, question))


# -- dialogues -------------------------------------------------------------------------------------------------------
def run_dialogue(name: str, screen: TerminalScreen, page: str | None = None) -> None:
    """One dialogue, or the list of dialogues for an empty name. page: the HTML file to write instead of playing it.

    Raises ValueError for an unknown name, and where the page cannot be written.
    """
    if not name:
        show_dialogues(screen)
        return
    one = dialogue(name, screen.language)
    if page is not None:
        write_dialogue(one, page, screen)
        return
    screen.text(one.title.in_(screen.language), style="bold")
    screen.text(dialogue_words("intro", screen.language, minutes=one.minutes))
    shows_all = False
    with suppress(Quit):
        for step in one.steps():
            shows_all = shows_all or _wants_all(step, screen)
            _show_step(one, step, screen)


def show_dialogues(screen: TerminalScreen) -> None:
    """Print the ids, titles and minutes of all dialogues."""
    for name in dialogue_names():
        one = dialogue(name)
        minutes = words("minutes", screen.language, count=one.minutes)
        screen.text(f"{one.title.in_(screen.language)} · {minutes}", first=f"  {one.id:<16} ")
    screen.line()
    screen.text(dialogue_words("how", screen.language, key=dialogue_names()[0]))


def write_dialogue(one: Dialogue, page: str, screen: TerminalScreen) -> None:
    """Write the page to print. Raises ValueError with the reason where that fails."""
    try:
        path = write_page(one, page, screen.language)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(dialogue_words("unwritten", screen.language, path=page, reason=reason)) from None
    screen.text(dialogue_words("written", screen.language, path=path))


def _wants_all(step: DialogueStep, screen: TerminalScreen) -> bool:
    """Let the learner answer before a turn of the candidate; whether everything that follows is to be shown at once."""
    if step.asks_first:
        return screen.ask(dialogue_words("ask_own", screen.language)).lower() in ALL
    if step.turn is None:
        screen.ask(dialogue_words("ask_scorecard", screen.language))
    return False


def _show_board(rows: list[list[str]], screen: TerminalScreen) -> None:
    """Print a whiteboard in columns, or with bars between its cells where the terminal is too narrow for columns."""
    lines = [f"  {line.rstrip()}" for line in aligned(rows, left=len(rows[0]))]
    if max(map(width, lines)) <= screen.columns:
        for line in lines:
            screen.line(line)
        return
    for row in rows:
        screen.text(" | ".join(filter(None, row)), first="  ")


def _show_step(one: Dialogue, step: DialogueStep, screen: TerminalScreen) -> None:
    """Print a turn with its whiteboard, or the scorecard."""
    screen.heading(dialogue_words("place", screen.language, number=step.number, total=step.total))
    if step.turn is None:
        for line in scorecard_text(one, screen.language).splitlines():
            screen.text(line.removeprefix("- "), first="- " if line.startswith("- ") else "")
        return
    screen.text(speaker(step.turn, screen.language), style="bold")
    screen.text(step.turn.text.in_(screen.language))
    if step.turn.board:
        screen.line()
        _show_board(step.turn.board.lines(screen.language), screen)
    screen.line()
