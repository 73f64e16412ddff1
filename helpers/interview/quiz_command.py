"""Implements the command `python -m helpers quiz`: parses its arguments and starts the quiz or what they ask for.

Instead of a quiz, options list the topics (--list), start a mock interview (--mock), a drill (--drill: a program to
write), a round (--round: mistakes to find, or a plan to design) or a worked interview (--dialogue), or write the cards
as an Anki deck (--anki).
`words(key, language, **values)` is a sentence of the quiz.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NoReturn

from helpers.interview.bank_file import card_ids, load_all
from helpers.interview.cards import LEVELS, topic_name, topic_of, words
from helpers.interview.dialogue_talk import DialogueTalk
from helpers.interview.dialogues import dialogue, dialogue_names, write_page
from helpers.interview.dialogues import words as dialogue_words
from helpers.interview.drills import Attempt, Judge, clock_text, drills
from helpers.interview.mock import MockInterview
from helpers.interview.quiz import FORMS, Quiz, path_key, select_cards
from helpers.interview.reviews import ReviewLog
from helpers.interview.steps import Talk
from helpers.interview.terminal import Quit, TerminalScreen, play_in_terminal, round_words
from helpers.learner.words import LANGUAGES, is_language_chosen
from helpers.learner.words import language as chosen_language
from helpers.learner.words.wrapping import aligned

COUNT = 10  # questions of a quiz: about ten minutes
INSTEAD_OF_QUIZ = ("list", "mock", "drill", "round", "dialogue", "anki")  # options, of which at most one may be given


def main(arguments: Sequence[str], check: Judge | None = None) -> int:
    """Run the command; returns the exit code. check: `(key, answer) -> verdict`, for drills and the mock interview."""
    try:
        code = _run(list(arguments), check)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print()
        return 130  # the exit code of shells after Ctrl-C
    except BrokenPipeError:  # in `| head`, what Python flushes when it exits must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str], check: Judge | None) -> int:
    """Parse and start; returns the exit code, after printing what went wrong."""
    try:
        language = _language(arguments)
        options = _parser(language, arguments).parse_args(arguments)
        screen = TerminalScreen(language)
        _mention_chinese(screen, options.lang)
        _start(options, screen, check)
    except Quit:
        pass
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise  # `main` handles it; it is an OSError, so the next clause would take it
    except OSError as error:
        print(words("no_file", language, reason=error), file=sys.stderr)
        return 1
    return 0


def _start(options: argparse.Namespace, screen: TerminalScreen, check: Judge | None) -> None:
    """Start what the options ask for."""
    given = [f"--{name}" for name in INSTEAD_OF_QUIZ if getattr(options, name) not in (None, False)]
    if len(given) > 1:
        raise ValueError(words("one_of", screen.language, given=given))
    if options.page is not None and not options.dialogue:
        raise ValueError(dialogue_words("page_needs", screen.language, key="rl-30b", path=options.page))
    if options.anki is not None:
        _export(options, screen)
    elif options.list:
        show_topics(screen)
    elif "" in (options.drill, options.round, options.dialogue):  # an option without a name lists what there is
        show_list(given[0].removeprefix("--"), screen)
    elif options.page is not None:
        write_dialogue(options.dialogue, options.page, screen)
    else:
        play_in_terminal(_talk(options, screen.language, check), screen)


def _talk(options: argparse.Namespace, language: str, check: Judge | None) -> Talk:
    """The conversation that the options ask for. Raises ValueError where there is none of that name."""
    topics = _names(options.topic)
    if options.mock:
        return MockInterview(level=_one_level(options, language), topics=topics, language=language, check=check)
    if options.drill is not None:
        by_key = {one.key: one for one in drills()}
        if options.drill not in by_key:
            raise ValueError(words("no_drill", language, given=options.drill, known=", ".join(by_key)))
        return Attempt(by_key[options.drill], check, language=language)
    if options.round is not None:
        from helpers.interview.round_attempt import new_attempt  # imports the calculators
        from helpers.interview.round_items import choose_round

        return new_attempt(choose_round(options.round, language), language=language)
    if options.dialogue is not None:
        return DialogueTalk(dialogue(options.dialogue, language), language=language)
    levels, count = _names(options.level), _count(options.count, language)
    return Quiz(topics=topics, levels=levels, language=language, form=options.form, count=count, ahead=options.ahead)


def show_list(kind: str, screen: TerminalScreen) -> None:
    """Print the names, titles and minutes of all drills, rounds or dialogues, and how to start one."""
    language = screen.language
    if kind == "round":
        from helpers.interview.round_attempt import best_results
        from helpers.interview.round_items import rounds

        results, how, width = best_results(), round_words("how", language, key=rounds()[0].id), 24
        rows = [(one.id, one, (round_words(one.kind, language),), results.get(one.id)) for one in rounds()]
    elif kind == "drill":
        rows, width = [(one.key, one, (), None) for one in drills()], 24
        how = words("drill_how", language, key=rows[0][0])
    else:
        rows, width = [(name, dialogue(name), (), None) for name in dialogue_names()], 16
        how = dialogue_words("how", language, key=rows[0][0])
    for name, one, more, best in rows:
        parts = [one.title.in_(language), *more, words("minutes", language, count=one.minutes)]
        if best:
            values = {"points": best.points, "most": best.most, "time": clock_text(best.seconds), "times": best.times}
            parts.append(round_words("best", language, **values))
        screen.text(" · ".join(parts), first=f"  {name:<{width}} ")
    screen.line()
    screen.text(how)


def write_dialogue(name: str, page: str, screen: TerminalScreen) -> None:
    """Write the page to print of a dialogue. Raises ValueError with the reason where that fails."""
    one = dialogue(name, screen.language)
    try:
        path = write_page(one, page, screen.language)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(dialogue_words("unwritten", screen.language, path=page, reason=reason)) from None
    screen.text(dialogue_words("written", screen.language, path=path))


def show_topics(screen: TerminalScreen) -> None:
    """Print a table of the topics with how many cards each has, how many are new and how many are due."""
    chapters = card_ids()
    now = datetime.now(UTC)
    log = ReviewLog(None, screen.language, lambda: now)
    reviews = log.read()
    rows = [[words(key, screen.language) for key in ("topic", "cards", "new", "due")]]
    for chapter in (*sorted(chapters, key=path_key), ""):  # "": the last row, for all chapters
        ids = chapters[chapter] if chapter else [one for ids in chapters.values() for one in ids]
        due = [when for when in map(reviews.due, ids) if when is not None]  # of cards seen before
        counts = (len(ids), len(ids) - len(due), sum(when <= now for when in due))
        name = topic_name(topic_of(chapter), screen.language) if chapter else words("all", screen.language)
        rows.append([name, *map(str, counts)])
    for number, line in enumerate(aligned(rows)):
        screen.line(line.rstrip(), "bold" if number in (0, len(rows) - 1) else "")
    if log.note:
        screen.text(log.note, style="wrong")


def _export(options: argparse.Namespace, screen: TerminalScreen) -> None:
    """Write the cards as an Anki deck."""
    from helpers.interview.anki import export

    wanted = {"topics": _names(options.topic), "levels": _names(options.level), "form": options.form}
    cards = select_cards(load_all(), **wanted, language=screen.language)
    num_notes = export(options.anki, cards, language=options.lang or "both")
    screen.say("exported", count=num_notes, path=options.anki)


def _names(given: list[str] | None) -> list[str]:
    """`--topic ddp,zero --topic amp` as three names."""
    return [name.strip() for text in given or [] for name in text.replace("，", ",").split(",") if name.strip()]


def _one_level(options: argparse.Namespace, language: str) -> str | None:
    """The level of --level, or None; ValueError for more than one."""
    levels = _names(options.level)
    if len(levels) > 1:
        raise ValueError(words("one_level", language, known=", ".join(LEVELS)))
    return levels[0] if levels else None


def _count(text: str, language: str) -> int | None:
    """How many questions; "all" for no limit."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(words("bad_count", language, given=text))
    return int(text)


def _language(arguments: list[str]) -> str:
    """The language of --lang, read before all other arguments because help and errors are in it."""
    parts = [word.partition("=") for word in arguments]
    given = [value for name, equals, value in parts if name == "--lang" and equals]
    given += [value for name, value in pairwise(arguments) if name == "--lang"]
    return chosen_language(given[-1] if given and given[-1] in LANGUAGES else None)


def _mention_chinese(screen: TerminalScreen, given: str | None) -> None:
    """Tells a learner in China that there is Chinese, or why it would show as question marks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    can_show = _can_show("中", encoding)
    if screen.language == "zh" and not can_show:
        screen.say("no_chinese", encoding=encoding)
    elif not given and not is_language_chosen() and _locale().startswith("zh"):
        screen.text(words["speaks_chinese"].in_("zh" if can_show else "en"))


def _locale() -> str:
    """The locale of messages, as C's setlocale reads it."""
    return next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "").lower()


def _can_show(text: str, encoding: str) -> bool:
    """Whether standard output's encoding has these characters."""
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


class _Parser(argparse.ArgumentParser):
    """Prints usage and errors in the learner's language."""

    language: str | None = None
    given: Sequence[str] = ()

    def format_usage(self) -> str:
        return super().format_usage().replace("usage: ", words("usage", self.language), 1)

    def format_help(self) -> str:
        return super().format_help().replace("usage: ", words("usage", self.language), 1)

    def error(self, message: str) -> NoReturn:
        sentence = words("bad_arguments", self.language, message=message, given=" ".join(self.given))
        self.exit(2, f"{sentence}\n")


def _parser(language: str, given: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all options. given: the arguments, which an error repeats."""
    parser = _Parser(prog="python -m helpers quiz", description=words("about", language), add_help=False)
    parser.language, parser.given = language, given
    which = parser.add_argument_group(words("which_cards", language))
    which.add_argument("--topic", action="append", metavar="ddp,zero", help=words("help_topic", language))
    which.add_argument("--level", action="append", metavar="senior", help=words("help_level", language))
    which.add_argument("--form", choices=("mixed", *FORMS), default="mixed", help=words("help_form", language))
    which.add_argument("--count", default=str(COUNT), metavar="N", help=words("help_count", language, count=COUNT))
    which.add_argument("--ahead", action="store_true", help=words("help_ahead", language))
    which.add_argument("--lang", choices=LANGUAGES, help=words("help_lang", language))
    other = parser.add_argument_group(words("instead", language))
    other.add_argument("--list", action="store_true", help=words("help_list", language))
    other.add_argument("--mock", action="store_true", help=words("help_mock", language))
    # const: --drill, --round and --dialogue without a name give "", which lists them all.
    other.add_argument("--drill", nargs="?", const="", metavar="03.average", help=words("help_drill", language))
    other.add_argument("--round", nargs="?", const="", metavar="debugging", help=words("help_round", language))
    other.add_argument("--dialogue", nargs="?", const="", metavar="rl-30b", help=words("help_dialogue", language))
    other.add_argument("--page", metavar="FILE.html", help=words("help_page", language))
    other.add_argument("--anki", metavar="FILE.apkg", help=words("help_anki", language))
    other.add_argument("-h", "--help", action="help", help=words("help_help", language))
    return parser
