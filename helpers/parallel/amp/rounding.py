"""Rounding to few bits: what a format can still tell apart, and stochastic rounding, which is right on average.

Legend: p = bits of the significand, the leading 1 included: float32 24, float16 11, bfloat16 8, float8_e4m3fn 4,
float8_e5m2 3.
Between two powers of two the numbers of a format stand a fixed step apart, so what counts is a ratio: weight / update.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def significand_bits(dtype: torch.dtype) -> int:
    """p: float16 11, bfloat16 8. Raises ValueError for a dtype that is not floating point."""
    return 1 - round(math.log2(relative_step(dtype)))


def relative_step(dtype: torch.dtype) -> float:
    """From 1 to the next larger number, 2**(1 - p): float16 2**-10, bfloat16 2**-7. ValueError as above."""
    if not dtype.is_floating_point:
        raise ValueError(f"{dtype} is not a floating-point type: give one such as torch.bfloat16 or torch.float16")
    return torch.finfo(dtype).eps


def lost_update_ratios(dtype: torch.dtype) -> tuple[float, float]:
    """The ratios weight / update beyond which adding the update can change nothing, and beyond which it never does.

    (2**p, 2**(p + 1)): float16 (2**11, 2**12), bfloat16 (2**8, 2**9). An update below half a step rounds away, and a
    step is 2**(1 - p) of a weight at a power of two but only half as much, relatively, of one below the next power.
    """
    bits = significand_bits(dtype)
    return 2.0**bits, 2.0 ** (bits + 1)


def smallest_subnormal(dtype: torch.dtype) -> float:
    """The smallest number above 0: float16 2**-24, bfloat16 2**-133."""
    return torch.finfo(dtype).tiny * relative_step(dtype)


def zero_below(dtype: torch.dtype) -> float:
    """Values below this round to 0, and so does the value itself, a tie that goes to the even side: float16 2**-25."""
    return smallest_subnormal(dtype) / 2


def stochastic_round(
    tensor: Tensor, dtype: torch.dtype = torch.bfloat16, generator: torch.Generator | None = None
) -> Tensor:
    """float32 to bfloat16, up or down at random, so that the mean of many roundings is the number itself.

    A number a quarter of the way between its neighbours goes up in one case of four. Round-to-nearest would always go
    down, and a thousand small updates of a weight would all be lost. inf and NaN stay what they are.
    How: a bfloat16 is the upper half of a float32, so add 16 random bits to the lower half and cut it off.
    Gupta et al. 2015, "Deep Learning with Limited Numerical Precision", arXiv:1502.02551, section 3.
    Raises ValueError for another target or an input that is not float32.
    """
    if tensor.dtype != torch.float32 or dtype != torch.bfloat16:
        raise ValueError(
            f"stochastic_round({tensor.dtype} to {dtype}): only torch.float32 to torch.bfloat16 is done here, "
            "because a bfloat16 is the upper half of a float32; call tensor.float() first"
        )
    tensor = tensor.detach().contiguous()
    bits = tensor.view(torch.int32)
    noise = torch.randint(1 << 16, bits.shape, dtype=torch.int32, device=bits.device, generator=generator)
    rounded = ((bits + noise) & -(1 << 16)).view(torch.float32)
    return torch.where(tensor.isfinite(), rounded, tensor).to(dtype)
