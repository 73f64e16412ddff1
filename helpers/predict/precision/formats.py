"""The floating-point formats of training as numbers: bits, and what follows from them.

Sources: IEEE 754-2019 (fp32, fp16); Micikevicius et al. 2022, "FP8 formats for deep learning", table 1, with E4M3 as in
torch.float8_e4m3fn; Kalamkar et al. 2019 (bf16); NVIDIA A100 white paper 2020 (tf32).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NumberFormat:
    """One sign bit, then the exponent, then the mantissa; has_infinity: whether the largest exponent is set apart."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True

    @property
    def num_bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def epsilon(self) -> float:
        """From 1 to the next larger number."""
        return 2.0**-self.mantissa_bits

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        return self.smallest_normal * self.epsilon

    @property
    def largest(self) -> float:
        """Without infinities the largest exponent holds numbers too, and one mantissa of it is NaN."""
        if self.has_infinity:
            return (2 - self.epsilon) * 2.0**self.bias
        return (2 - 2 * self.epsilon) * 2.0 ** (self.bias + 1)

    @property
    def overflow_from(self) -> float:
        """The smallest size that is too large: it rounds to infinity, or lies above `largest` where there is none."""
        if not self.has_infinity:
            return self.largest
        return self.largest + 2.0 ** math.floor(math.log2(self.largest)) * self.epsilon / 2

    def fate(self, value: float) -> str:
        """What rounding to nearest, ties to even, makes of a value: "normal", "subnormal", "0", "∞" or "largest".

        A format without infinities cuts what is too large to its largest number, as torch 2.13 does (the paper allows
        NaN as well). ValueError for NaN.
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
    one.name: one
    for one in (
        NumberFormat(name="fp32", exponent_bits=8, mantissa_bits=23),
        NumberFormat(name="tf32", exponent_bits=8, mantissa_bits=10),
        NumberFormat(name="bf16", exponent_bits=8, mantissa_bits=7),
        NumberFormat(name="fp16", exponent_bits=5, mantissa_bits=10),
        NumberFormat(name="fp8 E5M2", exponent_bits=5, mantissa_bits=2),
        NumberFormat(name="fp8 E4M3", exponent_bits=4, mantissa_bits=3, has_infinity=False),
    )
}


def number_format(name: str) -> NumberFormat:
    """The format of that name. ValueError for an unknown one."""
    if name not in NUMBER_FORMATS:
        raise ValueError(f"no number format {name!r}; the known ones are {', '.join(NUMBER_FORMATS)}")
    return NUMBER_FORMATS[name]


def bits_with_scales(bits: int, *, block: int, scale_bits: int) -> float:
    """Bits per number where `block` numbers share a scale of `scale_bits` (OCP Microscaling 1.0, section 5)."""
    return bits + scale_bits / block
