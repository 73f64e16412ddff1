"""What of a submission a teacher should read, the surest first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from helpers.classroom.flags import SURE, Flag, sorted_flags
from helpers.classroom.results import Result

_PLACE = re.compile(r"cell (?P<cell>[^,:]+)(, line (?P<line>\d+))?")


def flags_of(result: Result) -> tuple[Flag, ...]:
    """The flags of a submission, the surest first; what several tasks need is there once, with all of their keys."""
    keys: dict[Flag, list[str]] = {}
    for task in result.tasks:
        for flag in task.flags:
            keys.setdefault(replace(flag, key=""), []).append(flag.key)
    return sorted_flags(replace(flag, key=", ".join(of)) for flag, of in keys.items())


def in_short(flags: Sequence[Flag]) -> str:
    """How many, and where: "1 certain (average:4), 2 look (start:2, start:9)"; "–" for none."""
    parts = []
    for sure in SURE:
        mine = [flag for flag in flags if flag.sure == sure]
        places = sorted({short_place(flag) for flag in mine if flag.place}, key=_by_line)
        parts += [f"{len(mine)} {sure}" + (f" ({', '.join(places)})" if places else "")] if mine else []
    return ", ".join(parts) or "–"


def _by_line(place: str) -> tuple[str, int]:
    cell, _, line = place.partition(":")
    return cell, int(line) if line.isdigit() else 0


def short_place(flag: Flag) -> str:
    """ "average:4" for "cell average, line 4"."""
    found = _PLACE.fullmatch(flag.place)
    return ":".join(filter(None, (found["cell"], found["line"]))) if found else flag.place
