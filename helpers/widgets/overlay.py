"""What was measured, laid over what was predicted: which bars belong together, and in words how far apart they are."""

from __future__ import annotations

import re
from collections.abc import Mapping

from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.units import format_bytes, format_ratio

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
        return "equal to the byte" if kinds else "nothing predicted, nothing measured"
    absent = [kind for kind in kinds if kind not in equal and not getattr(measured, kind)]
    same = [f"{_joined(equal)} equal to the byte"] if equal else []
    different = [_difference(kind, predicted, measured) for kind in kinds if kind not in (*equal, *absent)]
    missing = [_missing(absent, predicted)] if absent else []
    return "; ".join([*same, *different, *missing, f"in all {_ratio(predicted.total, measured.total)}"])


def _missing(kinds: list[str], predicted: MemoryBreakdown) -> str:
    size = format_bytes(sum(getattr(predicted, kind) for kind in kinds))
    return f"no {_joined(kinds)} there ({size} predicted)"


def _difference(kind: str, predicted: MemoryBreakdown, measured: MemoryBreakdown) -> str:
    before, after = getattr(predicted, kind), getattr(measured, kind)
    return f"{kind} {_ratio(before, after)}" if before else f"{kind} {format_bytes(after)}, none predicted"


def _ratio(before: float, after: float) -> str:
    """The ratio with two digits after the point; where that reads 1.00 although they differ, the bytes between them."""
    if not before or format_ratio(after / before) != "1.00":
        ratio = format_ratio(after / before) if before else "–"
        return f"{ratio} of the prediction ({format_bytes(after)} of {format_bytes(before)})"
    if after == before:
        return "equal to the byte"
    return f"{format_bytes(abs(after - before))} {'more' if after > before else 'less'} than the prediction"


def _joined(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def overlay_words(predicted: Breakdowns, measured: Breakdowns) -> str:
    """One sentence for each way of being apart; bars that part alike share it. predicted has the keys of measured."""
    said: dict[str, list[str]] = {}
    for name, breakdown in measured.items():
        said.setdefault(apart(predicted[name], breakdown), []).append(_with_instant(name, breakdown))
    return " ".join(f"Measured, {_joined(names)}: {words}." for words, names in said.items())


def _with_instant(name: str, breakdown: MemoryBreakdown) -> str:
    return f"{name} ({breakdown.instant})" if breakdown.instant and breakdown.instant not in name else name


def overlay_rows(predicted: Breakdowns, measured: Breakdowns, kinds: list[str]) -> list[dict[str, str]]:
    """The rows "measured / predicted" of the explorer's table, a ratio for each kind."""
    return [
        {"ranks": f"measured / predicted: {name}"}
        | {kind: _plain_ratio(getattr(predicted[name], kind), getattr(one, kind)) for kind in (*kinds, "total")}
        for name, one in measured.items()
    ]


def _plain_ratio(before: float, after: float) -> str:
    return format_ratio(after / before if before else None)
