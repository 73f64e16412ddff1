"""Says why a run of a learner's function gave no outputs, without the lines in the grader's own files.

why_not_callable   a RunFailure if the task cannot call what was submitted
failure_of         a RankError, which the engine raises when a rank fails or hangs, as a RunFailure
cut_print          what the learner's code printed, if that is long
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from helpers.grading.task import RunFailure, Task
from helpers.learner.words import Words
from helpers.ranks.board.errors import RankError

MAX_PRINTED = 4000  # characters of the learner's prints that are kept
GRADER_FILES = sorted({path.name for path in Path(__file__).parent.rglob("*.py")})  # see `without_grader_lines`
# The class of an exception on a rank -> the kind of the RunFailure; the RankError names that of any other.
KINDS = {"TooLong": "too_long", "TooMuch": "memory", "Refused": "refused", "NotImplementedError": "not_written"}


def why_not_callable(task: Task, submitted: Any) -> RunFailure | None:
    """Why the task cannot call what was submitted; None if it can."""
    if not callable(submitted):
        text = "None" if submitted is None else f"{type(submitted).__name__} object"
        return RunFailure(kind="not_callable", text=text)
    if inspect.iscoroutinefunction(submitted):
        return RunFailure(kind="async", text=task.name)
    if task.name[0].isupper() and not isinstance(submitted, type):  # the task asks for a class
        return RunFailure(kind="not_a_class", text=task.name)
    try:
        signature = inspect.signature(submitted)
    except (ValueError, TypeError):  # some built-in functions have no signature
        return None
    try:
        signature.bind(*task.arguments)  # with any values: only their number matters
    except TypeError:
        return RunFailure(kind="signature", text=f"{task.name}{signature}")
    return None


def failure_of(error: RankError) -> RunFailure:
    """A RankError as a RunFailure, without the lines in the grader's own files.

    The last line is left out too: it says that variables on the ranks are kept, and here they are not the learner's.
    """
    # `words` is the error's text in each language, and `map` changes the text of each. rpartition drops the last line.
    return run_failure(error.kind, error.words.map(lambda text: text.rpartition("\n")[0]), error.rank)


def run_failure(kind: str, message: Words, rank: int | None) -> RunFailure:
    """The RunFailure of an error of this kind (of a RankError) with this message."""
    message = message.map(without_grader_lines)
    raised = re.search(r"raised (\w+)", message.en)
    type_name = raised.group(1) if raised and kind == "exception" else ""
    kind = KINDS.get(type_name, kind)
    # For these kinds the verdict's own sentence says what happened, so the exception's class or the first line is left
    # out.
    if kind in ("memory", "refused"):
        type_name, message = "", message.map(_without_type)
    if kind in ("too_long", "timeout", "deaf"):
        kind, type_name, message = "too_long", "", message.map(_without_first_line)
    return RunFailure(kind=kind, text=message.en, message=message, rank=rank, type_name=type_name)


def _without_first_line(text: str) -> str:
    """The text without its first line, and without the indent of the others."""
    return "\n".join(line.strip() for line in text.splitlines()[1:])


def _without_type(text: str) -> str:
    """Turns "rank 1 raised Refused: starts a process" into "rank 1: it starts a process"; TooMuch likewise."""
    for raised, colon in ((" raised", ": it "), (" 抛出", "：")):
        text = text.replace(f"{raised} Refused: ", colon).replace(f"{raised} TooMuch: ", colon)
    return text


def without_grader_lines(text: str) -> str:
    """An error text without the lines in the grader's files, which a learner cannot change; the learner's own stay."""
    for name in GRADER_FILES:
        # Such a line reads "run_on_ranks.py line 12: `code`", in English or Chinese. It stands before ", under " and
        # the learner's own line, alone after "at", or at the end of a list.
        line = rf"(?<![\w.]){re.escape(name)} (line \d+|第 \d+ 行)([:：] ?`[^\n]*`)?"
        text = re.sub(rf"{line}, under |（其中 {line}）", "", text)
        text = re.sub(rf"\n *(at|位于) {line}$|(, |，){line}$", "", text, flags=re.MULTILINE)
    return text


def cut_print(text: str) -> str:
    """The first MAX_PRINTED characters of a text, and how many more there were."""
    num_more = len(text) - MAX_PRINTED
    return text if num_more <= 0 else text[:MAX_PRINTED] + f"\n… ({num_more:,} more characters)\n"
