"""What torch refuses on NCCL at the call, with torch's types of error, in words that say what to do."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from helpers.ranks.nccl.verdicts import SAYS

LACKING = {torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.complex32}
BITWISE = ("BAND", "BOR", "BXOR")
COPIED = {"all_gather": 1, "reduce_scatter": 0}  # which list torch copies itself: of outputs, or of inputs


def refuse(kind: type[Exception], name: str, /, **values: object) -> None:
    error = kind(str(SAYS[f"refused.{name}"].format(**values)))
    error.words = SAYS[f"refused.{name}"].format(**values)
    raise error


def check_collective(name: str, reduce_op: str | None, inputs: list[Tensor], outputs: list[Tensor]) -> None:
    """Raises ValueError for strided tensors, TypeError for a dtype and RuntimeError for a reduction that NCCL lacks."""
    if reduce_op in BITWISE:
        refuse(RuntimeError, "reduction", op=reduce_op)
    sides = [inputs, outputs]
    if len(sides[COPIED.get(name, 0)]) > 1 and name in COPIED:
        sides.pop(COPIED[name])
    for tensor in (one for side in sides for one in side):
        if not is_whole(tensor):
            refuse(ValueError, "strided", name=name, shape=tuple(tensor.shape), strides=tensor.stride())
    check_dtypes([*inputs, *outputs])
    if any(one.is_complex() for one in inputs) and reduce_op in ("MAX", "MIN", "PRODUCT"):
        refuse(ValueError, "complex", op=reduce_op)
    if reduce_op == "AVG" and any(one.dtype == torch.bool for one in inputs):
        refuse(TypeError, "average")


def check_dtypes(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        if tensor.dtype in LACKING:
            refuse(TypeError, "dtype", dtype=str(tensor.dtype).removeprefix("torch."))


def is_whole(tensor: Tensor) -> bool:
    """Contiguous in the order that torch would suggest for it: channels last is, a slice of columns is not."""
    if tensor.is_contiguous():
        return True
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])


def as_it_lies(tensor: Tensor) -> Tensor:
    """The elements in the order of their memory, which NCCL sends of a dense tensor; others come back as they are."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != step:
            return tensor
        step *= size
    return tensor if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))


def order_of(tensor: Tensor) -> tuple[int, ...]:
    """How a dense tensor lies, if it is not contiguous: both sides of a message should agree on it."""
    return () if tensor.is_contiguous() else (*tensor.shape, *tensor.stride())
