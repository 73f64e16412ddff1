"""A flag: something in an answer that a teacher should read. It takes no points; the verdict gives those alone.

certain   the learner's own line names it, or what the ranks did proves it
likely    a way that honest answers do not take
look      unusual, and perhaps honest
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SURE = CERTAIN, LIKELY, LOOK = "certain", "likely", "look"


@dataclass(frozen=True, kw_only=True)
class Flag:
    """key: of the task. place: "cell average, line 4", or "" where no line did it. says: a sentence. sure: as above."""

    key: str
    place: str
    says: str
    sure: str

    @property
    def text(self) -> str:
        return f"{self.place}: {self.says} ({self.sure})" if self.place else f"{self.says} ({self.sure})"


def sorted_flags(flags: Iterable[Flag]) -> tuple[Flag, ...]:
    """Each once, the surest first."""
    found: dict[tuple[str, str, str], Flag] = {}
    for flag in flags:
        known = found.setdefault((flag.key, flag.place, flag.says), flag)
        if SURE.index(flag.sure) < SURE.index(known.sure):
            found[flag.key, flag.place, flag.says] = flag
    return tuple(sorted(found.values(), key=lambda flag: SURE.index(flag.sure)))
