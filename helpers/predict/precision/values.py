"""What a number format keeps of values: normal, subnormal (some bits lost), rounded to zero, too large.

The bounds are those of `NumberFormat`: a value up to half the smallest subnormal rounds to zero (ties to even). They
are powers of two except the upper one, so the shares are exact where the loss scale is a power of two too; within a
bin that a bound cuts, values are taken to lie evenly in log2.

The recorded magnitudes are those of a GPT of 10,698,240 parameters after 20 steps of AdamW, in fp32, of a batch of
16 x 64 characters; the command is `python tools/record_magnitudes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from helpers.predict.precision.formats import NumberFormat, number_format
from helpers.records import Magnitudes

RECORDED = Path(__file__).with_name("gpt_magnitudes.jsonl")
SCALES = tuple(2.0**power for power in range(25))  # 1 to 2**24; torch starts at 2**16


@dataclass(frozen=True, kw_only=True)
class Survival:
    """Shares of the values, together 1. normal: full precision. subnormal: fewer bits. zero: gone. overflow: inf."""

    normal: float
    subnormal: float
    zero: float
    overflow: float


def surviving(magnitudes: Magnitudes, name: str | NumberFormat, scale: float = 1.0) -> Survival:
    """What becomes of the values, times `scale`, in a format: its name, a key of NUMBER_FORMATS, or the format.

    Values that were 0, inf or NaN before are left out. ValueError for an unknown format, for a scale that is not a
    positive finite number, and for no values.
    """
    one = number_format(name) if isinstance(name, str) else name
    if not 0 < scale < math.inf:
        raise ValueError(f"the loss scale is {scale!r}; give a positive number, such as 2.0**16")
    if not magnitudes.counted:
        raise ValueError(f"{magnitudes.name}: no value is finite and above 0, so there is nothing to share out")
    bounds = (one.smallest_subnormal / 2, one.smallest_normal, one.overflow_from)
    zero, below_normal, below_overflow = (_below(magnitudes, math.log2(bound / scale)) for bound in bounds)
    return Survival(
        normal=below_overflow - below_normal,
        subnormal=below_normal - zero,
        zero=zero,
        overflow=1 - below_overflow,
    )


def _below(magnitudes: Magnitudes, power: float) -> float:
    """The share of the values below 2**power."""
    return math.fsum(share * min(1.0, max(0.0, power - left)) for left, share in magnitudes.bins())


def best_scale(magnitudes: Magnitudes, name: str | NumberFormat, scales: Iterable[float] = SCALES) -> float:
    """The smallest scale that keeps most values normal while none overflows; the smallest of all if each overflows."""
    found = {scale: surviving(magnitudes, name, scale) for scale in sorted(scales)}
    safe = {scale: shares for scale, shares in found.items() if not shares.overflow}
    return max(safe, key=lambda scale: safe[scale].normal, default=min(found))


@cache
def recorded_magnitudes() -> dict[str, Magnitudes]:
    """What a real GPT's step computes, by kind; the docstring of this file says of which model and run."""
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    return {one.name: one for one in map(Magnitudes.from_json, lines)}


def recorded(name: str) -> Magnitudes:
    """One of them, such as "gradients of activations". ValueError for an unknown name."""
    known = recorded_magnitudes()
    if name not in known:
        raise ValueError(f"no magnitudes are recorded under {name!r}; the known ones are {', '.join(known)}")
    return known[name]
