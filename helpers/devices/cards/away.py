"""A parameter that `.data = ` a CPU tensor has taken off the card while autograd knows it, as FSDP1 does to save it.

The object stays what C++ made it, on card:0; what it says and computes is the CPU tensor's, until it is put back.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_INSIDE = ("_raw", "_cpu")  # what a card's tensor wraps, and what one wraps that is away


class Away(Tensor):
    _cpu: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: self._cpu.device)
    is_cuda = property(lambda self: False)
    data = property(Tensor.detach, lambda self, other: place(self, other))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if len(types) > 1:  # a card compares devices, with the CPU tensor inside
            return NotImplemented
        return func(*opened(args), **opened(kwargs or {}))

    def untyped_storage(self) -> torch.UntypedStorage:
        return self._cpu.untyped_storage()


def opened(values):
    """What is away, as the CPU tensors inside."""
    return tree_map_only(Away, lambda one: one._cpu, values)


def place(tensor: Tensor, other: Tensor) -> None:
    """`tensor.data = other`, of a card's tensor or of one that is away: on the card, or off it."""
    if isinstance(other, Away):
        other = other._cpu
    shape = other
    if not hasattr(other, "_raw"):
        shape = Tensor._make_wrapper_subclass(
            Away, other.size(), strides=other.stride(), dtype=other.dtype, device="card:0"
        )
        shape._cpu = other
    torch._C.TensorBase.data.__set__(tensor, shape)
    for name in _INSIDE:
        tensor.__dict__.pop(name, None)
    tensor.__class__ = type(shape)
    tensor.__dict__.update((name, vars(shape)[name]) for name in _INSIDE if name in vars(shape))
