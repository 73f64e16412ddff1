"""%%ranks: a notebook cell on every rank."""

from __future__ import annotations

import argparse
import shlex

from helpers.ranks.errors import RankError
from helpers.ranks.live import current

USAGE = "%%ranks [0,2] [--timeout SECONDS]"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise ValueError(f"{message}; write it as {USAGE}")


def _parse(line: str) -> argparse.Namespace:
    parser = _Parser(prog="%%ranks", add_help=False)
    parser.add_argument("ranks", nargs="?", default=None)
    parser.add_argument("--timeout", type=float, default=None)
    found = parser.parse_args(shlex.split(line.partition("#")[0]))
    if found.ranks is not None:
        found.ranks = _numbers(found.ranks)
    return found


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"%%ranks takes rank numbers such as 0,2 but got {text!r}; write it as {USAGE}") from None


def ranks_cell(line: str, source: str) -> None:
    """Run the cell on the ranks that were made last."""
    ranks = current()
    if ranks is None:
        raise ValueError("there are no ranks yet: run `ranks = Ranks(4)` in a cell before this one.")
    options = _parse(line)
    ranks.cell(source, ranks=options.ranks, timeout=options.timeout)


def register(shell) -> None:
    """Make %%ranks known to this IPython, and have it show our errors without our frames."""

    def cell_magic(line: str, cell: str) -> None:
        try:
            ranks_cell(line, cell)
        except (RankError, ValueError) as error:
            raise error.with_traceback(None) from None

    shell.register_magic_function(cell_magic, magic_kind="cell", magic_name="ranks")
