"""What of a submission a teacher should read, the surest first: the one place that knows how a Result keeps it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from helpers.grading.classroom.results import Result

SURE = ("certain", "likely", "look")  # the surest first
_PLACE = re.compile(r"cell (?P<cell>[^,:]+)(, line (?P<line>\d+))?")


@dataclass(frozen=True, kw_only=True)
class Flag:
    """key: of the task. place: "cell average, line 4", or "" where no line did it. says: a sentence. sure: see SURE."""

    key: str = ""
    place: str = ""
    says: str
    sure: str

    @property
    def text(self) -> str:
        return f"{self.place}: {self.says} ({self.sure})" if self.place else f"{self.says} ({self.sure})"


def flags_of(result: Result) -> tuple[Flag, ...]:
    """The flags of a submission, the surest first."""
    return tuple(_of_text(text) for text in result.suspicions)


def _of_text(text: str) -> Flag:
    place, colon, says = text.partition(": ")
    is_place = bool(colon) and _PLACE.fullmatch(place) is not None
    return Flag(place=place if is_place else "", says=says if is_place else text, sure="likely")


def in_short(flags: Sequence[Flag]) -> str:
    """How many, and where: "1 certain (average:4), 2 look (start:2, start:9)"; "–" for none."""
    parts = []
    for sure in SURE:
        mine = [flag for flag in flags if flag.sure == sure]
        places = list(dict.fromkeys(short_place(flag) for flag in mine if flag.place))
        parts += [f"{len(mine)} {sure}" + (f" ({', '.join(places)})" if places else "")] if mine else []
    return ", ".join(parts) or "–"


def short_place(flag: Flag) -> str:
    """ "average:4" for "cell average, line 4"."""
    found = _PLACE.fullmatch(flag.place)
    return ":".join(filter(None, (found["cell"], found["line"]))) if found else flag.place
