"""What one call of a process group amounts to: what is compared across ranks, and what the log keeps.

name   the log's name: all_reduce, all_gather, …      what   "all_reduce SUM float32 (4, 2)": compared
give   what this rank sends to each peer              take   what it expects from each: compared crosswise
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from helpers.devices import runs_later
from helpers.devices.lines import call_site as call_site  # known by this name too

_REDUCE_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_REDUCE_OPS = tuple((name, getattr(dist.ReduceOp, name)) for name in _REDUCE_NAMES if hasattr(dist.ReduceOp, name))
_DTYPES = {dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


@dataclass(slots=True)
class Signature:
    name: str
    what: str
    num_bytes: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    root: int | None = None  # group rank
    reduce_op: str | None = None
    give: tuple[str, ...] = ()
    take: tuple[str, ...] = ()
    runs_later: bool = False


def signature(
    name: str, tensors: Sequence[torch.Tensor], *, root: int | None = None, reduce_op=None, extra: str = ""
) -> Signature:
    """The signature of an operation whose ranks must all pass tensors of the same shapes and dtypes."""
    op = None if reduce_op is None else reduce_name(reduce_op)
    what = name + extra
    if op:
        what += " " + op
    if root is not None:
        what += f" root {root}"
    if tensors:
        what += " " + ", ".join(map(describe_tensor, tensors))
    return _filled(Signature(name, what, root=root, reduce_op=op), tensors)


def message_signature(name: str, tensor: torch.Tensor) -> Signature:
    """The signature of a send or a receive: its shape does not travel, so only "float32 x 8" is compared."""
    sig = Signature(name, f"{_DTYPES[tensor.dtype]} x {tensor.numel()}")
    return _filled(sig, [tensor])


def crossed(name: str, tensors: Sequence[torch.Tensor], what: str, give: list[str], take: list[str]) -> Signature:
    """The signature of an all-to-all: what one rank sends another must be what that one expects."""
    return _filled(Signature(name, what, give=tuple(give), take=tuple(take)), tensors)


def _filled(sig: Signature, tensors: Sequence[torch.Tensor]) -> Signature:
    if tensors:
        first = tensors[0]
        sig.num_bytes = sum(t.numel() * t.element_size() for t in tensors)
        sig.dtype, sig.shape = _DTYPES[first.dtype], tuple(first.shape)
        sig.runs_later = runs_later(first.device)
    return sig


def describe_tensor(tensor: torch.Tensor) -> str:
    """'float32 (4, 2)'"""
    return f"{_DTYPES[tensor.dtype]} {tuple(tensor.shape)}"


def reduce_name(op) -> str:
    """'SUM', from a ReduceOp or a RedOpType. `str` of the former would show an address that differs on every rank."""
    for name, known in _REDUCE_OPS:
        if op == known:
            return name
    return "another reduction"


def all_to_all_single(
    output: torch.Tensor, input: torch.Tensor, taken: Sequence[int], given: Sequence[int], size: int
) -> Signature:
    """`given` and `taken`: rows for each rank; empty means equal parts."""
    row = describe_row(input)
    give, take = _rows(given, input, size), _rows(taken, output, size)
    return crossed("all_to_all", [input], f"all_to_all of rows {row}", give, take)


def _rows(splits: Sequence[int], tensor: torch.Tensor, size: int) -> list[str]:
    if not splits:
        splits = [tensor.shape[0] // size if tensor.dim() else 0] * size
    return [f"{rows} row{'' if rows == 1 else 's'}" for rows in splits]


def describe_row(tensor: torch.Tensor) -> str:
    return f"{_DTYPES[tensor.dtype]} {tuple(tensor.shape[1:])}"
