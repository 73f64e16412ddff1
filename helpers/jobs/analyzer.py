"""torch's own analyzer of flight recorders (`torchfrtrace`) on what the ranks left, in its own words.

On gloo three things have to be put right or said: the first group stands there under the name '' (renamed), the other
groups lack their ranks (taken from the processes), and messages from one rank to another are not recorded at all.
"""

from __future__ import annotations

import argparse
import copy
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NUMBER = re.compile(r"sequence number: (\d+)", re.IGNORECASE)
_MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")
_CULPRIT = re.compile(r"Culprit rank (\d+); Error type: (\w+)")


@dataclass(frozen=True, kw_only=True)
class Opinion:
    """What it found first. ranks: those it names; problem: why it could not tell, in its words."""

    number: int | None = None
    ranks: tuple[int, ...] = ()
    kind: str = ""
    problem: str = ""


def opinion(dumps: Mapping[int, Mapping[str, Any]], groups: Mapping[str, Sequence[int]]) -> Opinion:
    """dumps: by rank. groups: name -> global ranks, as the processes know them."""
    logging.disable(logging.WARNING)  # it says while it is imported that a package for tables is missing
    try:
        from torch.distributed.flight_recorder.components.builder import build_db
    finally:
        logging.disable(logging.NOTSET)
    logger, said = logging.getLogger("Flight Recorder"), _Said()
    handlers, logger.handlers, spreads = logger.handlers, [said], logger.propagate
    logger.propagate = False
    options = argparse.Namespace(verbose=False, just_print_entries=False, allow_incomplete_ranks=True, mismatch_cap=10)
    try:
        details = {f"rank{rank}": mended(rank, dump, groups) for rank, dump in dumps.items()}
        build_db(details, options, next(iter(dumps.values()))["version"])
    except Exception as error:  # its own words are the answer
        return Opinion(problem=f"{type(error).__name__}: {error}")
    finally:
        logger.handlers, logger.propagate = handlers, spreads
    return _read(said.lines)


def mended(rank: int, dump: Mapping[str, Any], groups: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The dump of a rank as the analyzer expects it: groups by the names that the entries use, with their ranks."""
    entries = [one for one in copy.deepcopy(list(dump["entries"])) if not one.get("is_p2p")]
    names = {one["process_group"] for one in entries}
    config = {
        name: {"name": name, "desc": desc, "ranks": str(list(groups[name]))} for name, desc in names if name in groups
    }
    return {**dump, "rank": rank, "entries": [one for one in entries if one["process_group"][0] in config],
            "pg_config": config}  # fmt: skip


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _read(lines: Sequence[str]) -> Opinion:
    """The first finding: a number, and behind it who is missing or who differs."""
    number: int | None = None
    for line in lines:
        if found := _NUMBER.search(line):
            number = int(found[1])
        elif found := _MISSING.search(line):
            ranks = tuple(sorted(int(one) for one in found[1].split(",")))
            return Opinion(number=number, ranks=ranks, kind="MISSING")
        elif culprits := _CULPRIT.findall(line):
            return Opinion(number=number, ranks=tuple(sorted(int(one) for one, _ in culprits)), kind=culprits[0][1])
    return Opinion()
