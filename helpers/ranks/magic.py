"""Registers %%ranks, which runs a notebook cell on every rank, and explains what its users mix up.

The notebook's process and the ranks are different processes, so two mistakes are common. A %%ranks cell uses a variable
that exists only in the notebook's process, or a cell without %%ranks calls a collective. The error then gets a sentence
that says so. `words["notebook.no_group"]` and the like are texts in every language of the course, from
helpers/learner/words/ranks.yaml. The file does not import torch.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Container
from types import TracebackType

from helpers.ranks.board.errors import RankError
from helpers.ranks.board.sites import PACKAGE, is_library, words
from helpers.ranks.live import current

UNKNOWN = re.compile(r"raised NameError: name '(\w+)' is not defined")
NO_GROUP = "Default process group has not been initialized"  # how torch's message begins


def with_advice(error: RankError, names: Container[str]) -> RankError:
    """The error of a cell, with one more sentence if an undefined name is one of the notebook's own `names`."""
    match = UNKNOWN.search(error.words.en)
    if match is None or match[1] not in names:
        return error
    message = error.words + "\n" + words["notebook.its_own"].format(name=match[1])
    return RankError(message, kind=error.kind, rank=error.rank, tracebacks=error.tracebacks)


def explain_missing_group(error: BaseException) -> None:
    """Let a notebook show a sentence instead of torch's traceback if a collective was called outside the ranks.

    IPython shows what the method `_render_traceback_` of an exception returns.
    """
    if isinstance(error, ValueError) and str(error).startswith(NO_GROUP):
        error._render_traceback_ = lambda: str(words["notebook.no_group"]).splitlines()


USAGE = "%%ranks [0,2] [--timeout SECONDS]"


class _Parser(argparse.ArgumentParser):
    """A parser that raises ValueError, where argparse would end the process."""

    def error(self, message: str) -> None:
        raise ValueError(f"{message}; write it as {USAGE}")


def _parse(line: str) -> argparse.Namespace:
    """`ranks`, a list or None, and `timeout` from what follows %%ranks on its line."""
    parser = _Parser(prog="%%ranks", add_help=False, allow_abbrev=False)
    parser.add_argument("ranks", nargs="?", default=None)
    parser.add_argument("--timeout", type=float, default=None)
    options = parser.parse_args(shlex.split(line.partition("#")[0]))
    if options.ranks is not None:
        options.ranks = _numbers(options.ranks)
    return options


def _numbers(text: str) -> list[int]:
    """[0, 2] from "0,2"."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"%%ranks takes rank numbers such as 0,2 but got {text!r}; write it as {USAGE}") from None


def ranks_cell(line: str, source: str, names: Container[str] = ()) -> None:
    """Run the cell on the ranks that were made last. Its first line is %%ranks, as in the notebook's line numbers.

    names: the notebook's own variables, for the advice of `with_advice`.
    """
    ranks = current()
    if ranks is None:
        raise ValueError("there are no ranks yet: run `ranks = Ranks(4)` in a cell before this one.")
    options = _parse(line)
    try:
        ranks.cell("\n" + source, ranks=options.ranks, timeout=options.timeout)  # "\n": for the line of %%ranks
    except RankError as error:
        raise with_advice(error, names) from None


def register(shell) -> None:
    """Make %%ranks known to this IPython shell, and let it show errors without the frames of this package."""

    def ranks(line: str, source: str) -> None:
        ranks_cell(line, source, shell.user_ns)

    ranks.__doc__ = ranks_cell.__doc__
    shell.register_magic_function(ranks, magic_kind="cell")

    def show_trimmed(shell, kind, value, trace, tb_offset=None) -> None:
        explain_missing_group(value)
        trimmed = (until_our_frames if issubclass(kind, KeyboardInterrupt) else without_our_frames)(trace)
        shell.showtraceback((kind, value, trimmed), tb_offset=tb_offset)

    if not shell.custom_exceptions:  # somebody else's handler stays
        shell.set_custom_exc((ValueError, RankError, KeyboardInterrupt), show_trimmed)


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """`trace` up to the learner's last line, if the error was raised in this package; otherwise as it is."""
    links = []
    while trace is not None:
        links.append(trace)
        trace = trace.tb_next
    # Whether each frame, outermost first, is of this package.
    is_ours = [link.tb_frame.f_code.co_filename.startswith(PACKAGE) for link in links]
    if not links or not is_ours[-1]:
        return links[0] if links else None
    first = is_ours.index(True)
    if first:
        links[first - 1].tb_next = None
    return links[0]


def until_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """`trace` of an interrupt up to the learner's last line, if that line called this package; otherwise as it is.

    An interrupt may come at any line, also in a library that this package called.
    """
    last = None  # the learner's last line
    link, is_ours = trace, False  # whether this package was called from there
    while link is not None:
        path = link.tb_frame.f_code.co_filename
        if path.startswith(PACKAGE):
            is_ours = True
        elif not is_library(path):
            last, is_ours = link, False
        link = link.tb_next
    if last is not None and is_ours:
        last.tb_next = None
    return trace
