"""What was measured, laid over what was predicted: which bars belong together, and in words how far apart they are."""

from __future__ import annotations

import re
from collections.abc import Mapping

from helpers.draw.palette import kind_word
from helpers.learner.words import book
from helpers.quantities.units import format_bytes, format_ratio
from helpers.records import MEMORY_KINDS, MemoryBreakdown

say = book("memory")
Breakdowns = Mapping[str, MemoryBreakdown]
_RANK = re.compile(r"\brank (\d+)\b")


def rank_of(name: str) -> int | None:
    """The rank that a measured bar names, such as 3 for "rank 3, at the peak"; None where it names none."""
    found = _RANK.search(name)
    return int(found[1]) if found else None


def apart(predicted: MemoryBreakdown, measured: MemoryBreakdown) -> str:
    """How far two breakdowns are apart, kind by kind: "parameters and gradients equal to the byte; …; in all …"."""
    kinds = [kind for kind in MEMORY_KINDS if getattr(predicted, kind) or getattr(measured, kind)]
    equal = [kind for kind in kinds if getattr(predicted, kind) == getattr(measured, kind)]
    if equal == kinds:
        return say("equal" if kinds else "no_bytes")
    absent = [kind for kind in kinds if kind not in equal and not getattr(measured, kind)]
    same = [say("same", kinds=list(map(kind_word, equal)))] if equal else []
    different = [_difference(kind, predicted, measured) for kind in kinds if kind not in (*equal, *absent)]
    missing = [_missing(absent, predicted)] if absent else []
    in_all = say("in_all", ratio=_ratio(predicted.total, measured.total))
    return say("list", parts=[*same, *different, *missing, in_all])


def _missing(kinds: list[str], predicted: MemoryBreakdown) -> str:
    size = format_bytes(sum(getattr(predicted, kind) for kind in kinds))
    return say("absent", kinds=list(map(kind_word, kinds)), size=size)


def _difference(kind: str, predicted: MemoryBreakdown, measured: MemoryBreakdown) -> str:
    before, after = getattr(predicted, kind), getattr(measured, kind)
    if not before:
        return say("unpredicted", kind=kind_word(kind), size=format_bytes(after))
    return say("differs", kind=kind_word(kind), ratio=_ratio(before, after))


def _ratio(before: float, after: float) -> str:
    """The ratio with two digits after the point; where that reads 1.00 although they differ, the bytes between them."""
    if not before or format_ratio(after / before) != "1.00":
        ratio = format_ratio(after / before) if before else "–"
        return say("ratio", ratio=ratio, after=format_bytes(after), before=format_bytes(before))
    if after == before:
        return say("equal")
    return say("more_than" if after > before else "less_than", size=format_bytes(abs(after - before)))


def overlay_words(predicted: Breakdowns, measured: Breakdowns) -> str:
    """One sentence for each way of being apart; bars that part alike share it. predicted has the keys of measured."""
    said: dict[str, list[str]] = {}
    for name, breakdown in measured.items():
        said.setdefault(apart(predicted[name], breakdown), []).append(_with_instant(name, breakdown))
    return say("between").join(say("said", names=names, words=words) for words, names in said.items())


def _with_instant(name: str, breakdown: MemoryBreakdown) -> str:
    return f"{name} ({breakdown.instant})" if breakdown.instant and breakdown.instant not in name else name


def overlay_rows(predicted: Breakdowns, measured: Breakdowns, kinds: list[str]) -> list[dict[str, str]]:
    """The rows "measured / predicted" of the explorer's table, a ratio for each kind."""
    columns = (*kinds, "total")
    return [
        {say("ranks"): say("over_predicted", name=name)}
        | {kind_word(kind): _plain_ratio(getattr(predicted[name], kind), getattr(one, kind)) for kind in columns}
        for name, one in measured.items()
    ]


def _plain_ratio(before: float, after: float) -> str:
    return format_ratio(after / before if before else None)
