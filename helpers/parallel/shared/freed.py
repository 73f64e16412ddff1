"""A parameter whose numbers are elsewhere: it keeps its shape, and any use of its values is a sentence, not a crash."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

_VALUES = {"data", "T", "mT", "H", "mH", "real", "imag"}  # properties that would show numbers
_ALLOWED = {
    getattr(Tensor, name)
    for name in (
        "__hash__ __len__ size stride dim numel nelement element_size is_floating_point is_complex untyped_storage "
        "storage_offset requires_grad_ register_hook register_post_accumulate_grad_hook"
    ).split()
}


class FreedWeight(nn.Parameter):
    """What a `nn.Parameter` is between `free_weight` and `show_weight`; torch's own lazy parameters change their class
    in the same way. Shape, dtype, device, `.grad` and hooks can be read.

    Raises RuntimeError for every operation on its values.
    """

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in _ALLOWED or _reads_a_property(function):
            return super().__torch_function__(function, types, args, kwargs or {})
        name = next((arg.freed_name for arg in _flatten(args, kwargs) if isinstance(arg, FreedWeight)), "a parameter")
        what = getattr(getattr(function, "__self__", None), "__name__", None) or getattr(function, "__name__", function)
        raise RuntimeError(
            f"{name} is freed, and {what} wants its values: this rank holds only a shard of it. It is whole while the "
            "module that owns it runs: use it in that module's forward, called as module(x). To read it, take "
            f"model.full_state()[{name!r}]; to train it, model.parameters()"
        )

    def __repr__(self) -> str:
        return f"FreedWeight({self.freed_name!r}, shape={tuple(self.shape)}, dtype={self.dtype})"


def freed_weight(name: str, shape: torch.Size, nothing: Tensor, requires_grad: bool) -> FreedWeight:
    """A new parameter without numbers. nothing: one element, with the values' dtype and device."""
    weight = nn.Parameter(nothing.expand(shape), requires_grad)
    weight.freed_name = name
    weight.__class__ = _freed(type(weight))
    return weight


def show_weight(weight: nn.Parameter, values: Tensor) -> None:
    """Let it be an ordinary parameter with these values."""
    weight.__class__ = type(weight).__bases__[-1]  # see _freed
    weight.data = values


def free_weight(weight: nn.Parameter, nothing: Tensor) -> None:
    """Let it keep its shape and nothing else."""
    weight.data = nothing.expand(weight.shape)
    weight.__class__ = _freed(type(weight))


@cache
def _freed(kind: type) -> type:
    """The class of a freed one; where its tensor has a class of its own, as on a practice card, it keeps that one's."""
    return FreedWeight if kind is nn.Parameter else type("FreedWeight", (FreedWeight, kind), {})


def _reads_a_property(function: object) -> bool:
    """Descriptors of properties arrive as method-wrappers; torch's lazy parameters tell them in the same way."""
    return type(function).__name__ == "method-wrapper" and function.__self__.__name__ not in _VALUES


def _flatten(args: tuple, kwargs: dict | None) -> list:
    """Arguments, and those in lists and tuples among them: torch.cat gets a list."""
    found = []
    for arg in [*args, *(kwargs or {}).values()]:
        found.extend(arg if isinstance(arg, (list, tuple)) else [arg])
    return found
