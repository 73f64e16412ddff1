"""A round in a terminal: lines are marked by their numbers, answers are typed, Ctrl-C shows the sheet so far."""

from __future__ import annotations

import re

from helpers.interview.rehearsal import hand_over, tell_time
from helpers.interview.rounds.items import rounds
from helpers.interview.rounds.kept import done
from helpers.interview.rounds.sitting import Answer, Designing, Marking, choose, say, sitting
from helpers.interview.screen import Over, Screen
from helpers.interview.stopwatch import clock_text
from helpers.interview.words import say as quiz_say

HINT = ("h", "hint", "提示")
YES, NO = ("y", "yes", "是", "对"), ("n", "no", "否", "不是", "")


def play(name: str, screen: Screen) -> None:
    """One round, of this id or kind; with an empty name, the list. Raises ValueError for a name that is none."""
    if not name:
        show_rounds(screen)
        return
    one = sitting(choose(name, screen.language), language=screen.language)
    kind, title = say(one.item.kind, screen.language), one.item.title.in_(screen.language)
    screen.text(say("welcome", screen.language, title=title, kind=kind, minutes=one.item.minutes))
    screen.line()
    try:
        screen.ask(quiz_say("ask_begin", screen.language))
        one.begin()
        screen.rule()
        screen.text(one.item.told(one.item.prompt).in_(screen.language))
        screen.line()
        (_mark if isinstance(one, Marking) else _plan)(one, screen)
    except (Over, KeyboardInterrupt):
        pass
    sheet = one.finish()
    hand_over(sheet, one.note, screen)


def show_rounds(screen: Screen) -> None:
    """Ids, kinds, minutes and titles, and what came of those that were done."""
    mine = done()
    for one in rounds():
        minutes = quiz_say("minutes", screen.language, count=one.minutes)
        parts = [one.title.in_(screen.language), say(one.kind, screen.language), minutes]
        if best := mine.get(one.id):
            time = clock_text(best.seconds)
            parts.append(say("best", screen.language, points=best.points, most=best.most, time=time, times=best.times))
        told = " · ".join(parts)
        screen.text(told, first=f"  {one.id:<24} ")
    screen.line()
    screen.text(say("how", screen.language, key=rounds()[0].id))


def _mark(one: Marking, screen: Screen) -> None:
    for number, line in enumerate(one.item.lines, start=1):
        screen.line(f"{screen.styled(f'{number:>3}', 'quiet')}  {line}".rstrip())
    screen.line()
    screen.text(say("how_to_mark", screen.language))
    screen.line()
    while typed := screen.ask(say("ask_mark", screen.language)):
        try:
            _one_mark(one, typed, screen)
        except ValueError as error:
            screen.text(str(error))
    one.hand_in()
    tell_time(one.watch, screen)
    for place in one.found:
        _compare(one, place, screen)


def _one_mark(one: Marking, typed: str, screen: Screen) -> None:
    if typed.lower() in HINT:
        hint = one.hint()
        screen.text(say("hint", screen.language, hint=hint) if hint else say("no_hint", screen.language))
        return
    minus, line, why = re.fullmatch(r"(-?)\s*(\d+|\S+)\W*(.*)", typed, re.DOTALL).groups()
    if minus and line.isdecimal():
        one.unmark(int(line))
    else:
        one.mark(line, why)
    lines = sorted(one.marks)
    screen.text(say("marked", screen.language, lines=lines) if lines else say("none_marked", screen.language))


def _compare(one: Marking, place: int, screen: Screen) -> None:
    """Our reason beside the learner's, who says whether they agree."""
    found = one.item.places[place]
    screen.line()
    screen.text(say("compare", screen.language, line=one.line_of(found)), style="right")
    screen.text(one.item.told(found.why).in_(screen.language))
    while True:
        typed = screen.ask(say("ask_held", screen.language)).lower()
        if typed in (*YES, *NO):
            return one.hold(place, typed in YES)
        screen.text(say("bad_held", screen.language, given=typed))


def _plan(one: Designing, screen: Screen) -> None:
    while (question := one.question) is not None:
        if one.answers:
            screen.line()
        screen.text(one.asked)
        answer = _answered(one, screen)
        screen.text(answer.sentence, style="right" if answer.points else "wrong")
        screen.text(one.text(question.why, question))


def _answered(one: Designing, screen: Screen) -> Answer:
    """The first answer to the question at hand that can be read."""
    while True:
        try:
            return one.answer(screen.ask(say("ask_answer", screen.language)))
        except ValueError as error:
            screen.text(str(error))
