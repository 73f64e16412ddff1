"""Says what a floating-point format (fp32, bf16, fp16, fp8 and others) keeps of a value, and of whole tensors.

`NumberFormat` has the bits of a format and the limits that follow from them. `surviving` gives the shares of recorded
values that stay normal, become subnormal, round to zero or overflow at a loss scale; `best_scale` chooses the scale.
A value up to half the smallest subnormal rounds to zero (ties to even). `Magnitudes` is a histogram of values with one
bin per power of two. All limits but the upper one are powers of two, so the shares are exact where the loss scale is a
power of two as well. Where a limit lies inside a bin, the values of that bin are taken to lie evenly in log2.

The recorded magnitudes come from one step of a GPT with 10,698,240 parameters, in fp32, on a batch of 16 x 64
characters, after 20 steps of AdamW. `python tools/record_magnitudes.py` recorded them.

Sources: IEEE 754-2019 (fp32, fp16); Micikevicius et al. 2022, "FP8 formats for deep learning", table 1, with E4M3 as in
torch.float8_e4m3fn; Kalamkar et al. 2019 (bf16); NVIDIA A100 white paper 2020 (tf32).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from helpers.records import Magnitudes


@dataclass(frozen=True, kw_only=True)
class NumberFormat:
    """A floating-point format: one sign bit, then the exponent, then the mantissa.

    has_infinity: whether the largest exponent is reserved for infinities and NaN, as in IEEE 754.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True

    @property
    def bias(self) -> int:
        """What is subtracted from the stored exponent."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0**-self.mantissa_bits

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with full precision."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number."""
        return self.smallest_normal * self.epsilon

    @property
    def largest(self) -> float:
        """The largest finite number. Without infinities the largest exponent has numbers too, except one NaN."""
        if self.has_infinity:
            return (2 - self.epsilon) * 2.0**self.bias
        return (2 - 2 * self.epsilon) * 2.0 ** (self.bias + 1)

    @property
    def overflow_from(self) -> float:
        """The smallest magnitude that is too large: it rounds to infinity, or is above `largest` without infinities."""
        if not self.has_infinity:
            return self.largest
        # Half a step above the largest number: from here on, the next power of two would be at least as near.
        step = 2.0 ** math.floor(math.log2(self.largest)) * self.epsilon
        return self.largest + step / 2

    def rounded_class(self, value: float) -> str:
        """What rounding to nearest, ties to even, makes of a value: "normal", "subnormal", "0", "∞" or "largest".

        A format without infinities limits a value that is too large to its largest number, as torch 2.13 does (the
        paper allows NaN as well). Raises ValueError for NaN.
        """
        size = abs(value)
        if math.isnan(size):
            raise ValueError("the value is NaN, which has no place among the numbers; give a number or an infinity")
        if self.has_infinity and size >= self.overflow_from:
            return "∞"
        if size <= self.smallest_subnormal / 2:
            return "0"
        if size > self.largest:
            return "largest"
        return "normal" if size >= self.smallest_normal else "subnormal"


NUMBER_FORMATS = {
    known.name: known
    for known in (
        NumberFormat(name="fp32", exponent_bits=8, mantissa_bits=23),
        NumberFormat(name="tf32", exponent_bits=8, mantissa_bits=10),
        NumberFormat(name="bf16", exponent_bits=8, mantissa_bits=7),
        NumberFormat(name="fp16", exponent_bits=5, mantissa_bits=10),
        NumberFormat(name="fp8 E5M2", exponent_bits=5, mantissa_bits=2),
        NumberFormat(name="fp8 E4M3", exponent_bits=4, mantissa_bits=3, has_infinity=False),
    )
}


def number_format(name: str) -> NumberFormat:
    """The format of this name, a key of NUMBER_FORMATS. ValueError for an unknown one."""
    if name not in NUMBER_FORMATS:
        raise ValueError(f"no number format {name!r}; the known ones are {', '.join(NUMBER_FORMATS)}")
    return NUMBER_FORMATS[name]


def bits_with_scales(bits: int, *, block: int, scale_bits: int) -> float:
    """Bits per number where each block of `block` numbers shares a scale (OCP Microscaling 1.0, section 5)."""
    return bits + scale_bits / block


RECORDED = Path(__file__).with_name("gpt_magnitudes.jsonl")
SCALES = tuple(2.0**power for power in range(25))  # loss scales, 1 to 2**24; torch's GradScaler starts at 2**16


@dataclass(frozen=True, kw_only=True)
class Survival:
    """Shares of the values, which sum to 1: full precision, fewer bits (subnormal), rounded to zero, and too large."""

    normal: float
    subnormal: float
    zero: float
    overflow: float


def surviving(magnitudes: Magnitudes, name: str | NumberFormat, scale: float = 1.0) -> Survival:
    """The shares of the values, multiplied by `scale`, that a format keeps, loses or lets overflow.

    name: a key of NUMBER_FORMATS, or a NumberFormat. Values that are 0, inf or NaN are left out. Raises ValueError for
    an unknown format, for a scale that is not a positive finite number, and for no values.
    """
    target = number_format(name) if isinstance(name, str) else name
    if not 0 < scale < math.inf:
        raise ValueError(f"the loss scale is {scale!r}; give a positive number, such as 2.0**16")
    if not magnitudes.counted:
        raise ValueError(f"{magnitudes.name}: no value is finite and above 0, so there is nothing to share out")
    bounds = (target.smallest_subnormal / 2, target.smallest_normal, target.overflow_from)
    zero, below_normal, below_overflow = (_below(magnitudes, math.log2(bound / scale)) for bound in bounds)
    normal, subnormal = below_overflow - below_normal, below_normal - zero
    return Survival(normal=normal, subnormal=subnormal, zero=zero, overflow=1 - below_overflow)


def _below(magnitudes: Magnitudes, power: float) -> float:
    """The share of the values below 2**power. A bin that `power` divides counts with the part below it."""
    return math.fsum(share * min(1.0, max(0.0, power - left)) for left, share in magnitudes.bins())


def best_scale(magnitudes: Magnitudes, name: str | NumberFormat, scales: Iterable[float] = SCALES) -> float:
    """The loss scale that keeps most values normal while none overflows; of equal ones the smallest.

    It is the smallest of `scales` where values overflow at each of them.
    """
    shares_by_scale = {scale: surviving(magnitudes, name, scale) for scale in sorted(scales)}
    safe = {scale: shares for scale, shares in shares_by_scale.items() if not shares.overflow}
    return max(safe, key=lambda scale: safe[scale].normal, default=min(shares_by_scale))


@cache
def recorded_magnitudes() -> dict[str, Magnitudes]:
    """The magnitudes of a real GPT's step by name; the docstring of this file describes the model and the run."""
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    return {magnitudes.name: magnitudes for magnitudes in map(Magnitudes.from_json, lines)}


def recorded(name: str) -> Magnitudes:
    """The recorded magnitudes of this name, such as "gradients of activations". ValueError for an unknown name."""
    known = recorded_magnitudes()
    if name not in known:
        raise ValueError(f"no magnitudes are recorded under {name!r}; the known ones are {', '.join(known)}")
    return known[name]
