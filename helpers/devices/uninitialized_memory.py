"""Fills, on a rank, the memory that `torch.empty` and its like return, with a number that stands out.

Fresh memory is often zero. A learner's function that forgets to write a part of its result would therefore pass a check
on one day and fail it on another. Checks run such functions inside `with FillUninitialized():`, so they always fail.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# The functions whose results have no values yet.
MAKERS = {torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted}
MAKERS |= {Tensor.new_empty, Tensor.new_empty_strided}


class FillUninitialized(TorchFunctionMode):
    """A mode in which torch.empty, new_empty and their like return tensors filled with `fill_value`."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in MAKERS:
            result.detach().fill_(fill_value(result.dtype))
        return result


def fill_value(dtype: torch.dtype) -> float | int | bool:
    """A large number. A floating one is still finite once it is squared. NaN would look like a division by zero."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return 0.5 * torch.finfo(dtype).max ** 0.5
    return torch.iinfo(dtype).max // 2
