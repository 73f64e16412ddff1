"""`python -m helpers quiz`: its arguments, and what each of them starts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from helpers.interview.bank_file import load_all
from helpers.interview.cards import LEVELS
from helpers.interview.deck import FORMS, topics
from helpers.interview.reviews import Journal
from helpers.interview.screen import Over, Screen
from helpers.interview.session import Quiz
from helpers.interview.words import say, topic_name
from helpers.learner import words
from helpers.learner.words import LANGUAGES
from helpers.learner.words.wrapping import aligned

COUNT = 10  # questions of a sitting: about ten minutes
INSTEAD = ("list", "mock", "drill", "anki")  # of a quiz; one at a time


def main(arguments: Sequence[str], check: Callable[[str, Any], Any] | None = None) -> int:
    """Run the quiz; returns the exit code. check: `(key, answer) -> verdict`, for drills and the mock interview."""
    try:
        code = _run(list(arguments), check)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print()
        return 130
    except BrokenPipeError:  # `| head`: what nobody reads is thrown away, also what Python flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str], check: Callable[[str, Any], Any] | None) -> int:
    try:
        language = _language(arguments)
        options = _parser(language, arguments).parse_args(arguments)
        screen = Screen(language)
        _tell_language(screen, options.lang)
        _start(options, screen, check)
    except Over:
        pass
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        print(say("no_file", language, reason=error), file=sys.stderr)
        return 1
    return 0


def _start(options: argparse.Namespace, screen: Screen, check: Callable[[str, Any], Any] | None) -> None:
    given = [f"--{name}" for name in INSTEAD if getattr(options, name) not in (None, False)]
    if len(given) > 1:
        raise ValueError(say("one_of", screen.language, given=given))
    if options.anki is not None:
        _export(options, screen)
    elif options.list:
        show_topics(screen)
    elif options.drill is not None:
        from helpers.interview import rehearsal

        rehearsal.drill(options.drill, screen, check)
    elif options.round is not None:
        from helpers.interview.rounds.screen import play

        play(options.round, screen)
    elif options.mock:
        from helpers.interview import rehearsal

        rehearsal.mock(screen, check, level=_one_level(options, screen.language), topics=_names(options.topic))
    else:
        from helpers.interview.sitting import sit

        sit(_quiz(options, screen.language), screen)


def _quiz(options: argparse.Namespace, language: str) -> Quiz:
    return Quiz(
        topics=_names(options.topic),
        levels=_names(options.level),
        language=language,
        form=options.form,
        count=_count(options.count, language),
        ahead=options.ahead,
    )


def show_topics(screen: Screen) -> None:
    """A table: topics along the interview path, with how many cards there are, are new, are due."""
    cards = load_all()
    now = datetime.now(UTC)
    journal = Journal(None, screen.language, lambda: now)
    reviews = journal.read()
    rows = [[say(key, screen.language) for key in ("topic", "cards", "new", "due")]]
    for topic in (*topics(cards), ""):
        mine = [card for card in cards if topic in ("", card.topic)]
        due = [when for card in mine if (when := reviews.due(card.id)) is not None]
        counts = (len(mine), len(mine) - len(due), sum(when <= now for when in due))
        rows.append([topic_name(topic, screen.language) if topic else say("all", screen.language), *map(str, counts)])
    for number, line in enumerate(aligned(rows)):
        screen.line(line.rstrip(), "bold" if number in (0, len(rows) - 1) else "")
    if journal.note:
        screen.text(journal.note, style="wrong")


def _export(options: argparse.Namespace, screen: Screen) -> None:
    from helpers.interview.anki import export
    from helpers.interview.deck import select

    wanted = {"topics": _names(options.topic), "levels": _names(options.level), "form": options.form}
    cards = select(load_all(), **wanted, language=screen.language)
    num_notes = export(options.anki, cards, language=options.lang or "both")
    screen.say("exported", count=num_notes, path=options.anki)


def _names(given: list[str] | None) -> list[str]:
    """`--topic ddp,zero --topic amp` as three names."""
    return [name.strip() for text in given or [] for name in text.replace("，", ",").split(",") if name.strip()]


def _one_level(options: argparse.Namespace, language: str) -> str | None:
    levels = _names(options.level)
    if len(levels) > 1:
        raise ValueError(say("one_level", language, known=", ".join(LEVELS)))
    return levels[0] if levels else None


def _count(text: str, language: str) -> int | None:
    """How many questions; "all" for no limit."""
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(say("bad_count", language, given=text))
    return int(text)


def _language(arguments: list[str]) -> str:
    """What --lang says, before anything else is read: also help and errors are in it."""
    parts = [word.partition("=") for word in arguments]
    given = [value for name, equals, value in parts if name == "--lang" and equals]
    given += [after for before, after in zip(arguments, arguments[1:], strict=False) if before == "--lang"]
    return words.language(given[-1] if given and given[-1] in LANGUAGES else None)


def _tell_language(screen: Screen, given: str | None) -> None:
    """What a learner in China would else have to find out: that there is Chinese, or why it shows as question marks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    can_show = _can_show("中", encoding)
    if screen.language == "zh" and not can_show:
        screen.say("no_chinese", encoding=encoding)
    elif not given and not words.was_chosen() and _locale().startswith("zh"):
        screen.text(say["speaks_chinese"].in_("zh" if can_show else "en"))


def _locale() -> str:
    """Of the messages, as C's setlocale reads it."""
    return next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "").lower()


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True


class _Parser(argparse.ArgumentParser):
    """Says what it has to say in the learner's language."""

    language: str | None = None
    given: Sequence[str] = ()

    def format_usage(self) -> str:
        return super().format_usage().replace("usage: ", say("usage", self.language), 1)

    def format_help(self) -> str:
        return super().format_help().replace("usage: ", say("usage", self.language), 1)

    def error(self, message: str) -> NoReturn:
        sentence = say("bad_arguments", self.language, message=message, given=" ".join(self.given))
        self.exit(2, f"{sentence}\n")


def _parser(language: str, given: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m helpers quiz", description=say("about", language), add_help=False)
    parser.language, parser.given = language, given
    which = parser.add_argument_group(say("which_cards", language))
    which.add_argument("--topic", action="append", metavar="ddp,zero", help=say("help_topic", language))
    which.add_argument("--level", action="append", metavar="senior", help=say("help_level", language))
    which.add_argument("--form", choices=("mixed", *FORMS), default="mixed", help=say("help_form", language))
    which.add_argument("--count", default=str(COUNT), metavar="N", help=say("help_count", language, count=COUNT))
    which.add_argument("--ahead", action="store_true", help=say("help_ahead", language))
    which.add_argument("--lang", choices=LANGUAGES, help=say("help_lang", language))
    other = parser.add_argument_group(say("instead", language))
    other.add_argument("--list", action="store_true", help=say("help_list", language))
    other.add_argument("--mock", action="store_true", help=say("help_mock", language))
    other.add_argument("--drill", nargs="?", const="", metavar="03.average", help=say("help_drill", language))
    other.add_argument("--round", nargs="?", const="", metavar="debugging", help=say("help_round", language))
    other.add_argument("--anki", metavar="FILE.apkg", help=say("help_anki", language))
    other.add_argument("-h", "--help", action="help", help=say("help_help", language))
    return parser
