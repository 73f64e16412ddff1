"""Stochastic rounding to few bits, which is right on average."""

from __future__ import annotations

import torch
from torch import Tensor


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
