"""Tensors: made on "cuda", moved there, and asked where they are."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import _device_constructors

from helpers.commands.rehearse.redirect import gpus
from helpers.devices.cards import late, pinned, tensor
from helpers.devices.cards.kernels import _creates
from helpers.devices.cards.tensor import Card

aten = torch.ops.aten
_libraries: list[torch.library.Library] = []
_WORDS = {  # what a card says, and what CUDA says; {} is the GPU's number
    "card:0": "cuda:{}",
    "wrapper_card_": "wrapper_CUDA_",
    "card out of memory": "CUDA out of memory",
    "Card 0 has": "GPU {} has",
    "'card' device type": "'cuda' device type",
    "torch.card.": "torch.cuda.",
    "card error": "CUDA error",
    "privateuseone": "cuda",
    "PrivateUse1": "CUDA",
}


def in_cudas_words(text: str) -> str:
    for ours, theirs in _WORDS.items():
        text = text.replace(ours, theirs.format(gpus.current if gpus.home is None else gpus.home))
    return text


def replace() -> None:
    library, others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    _libraries.extend((library, others))
    library.impl("empty.memory_format", functools.partial(_made, aten.empty.memory_format), "CUDA")
    library.impl("empty_strided", functools.partial(_made, aten.empty_strided.default), "CUDA")
    others.fallback(lambda op, *args, **kwargs: _made(op, *args, **kwargs), "CUDA")
    for owner, name in ((torch, "tensor"), (torch, "as_tensor"), (torch, "asarray"), (Tensor, "new_tensor")):
        setattr(owner, name, _placing(getattr(owner, name)))
    Tensor.to, Tensor.cuda = _moving(Tensor.to), _cuda
    _let_numbers_be_gpus()
    Tensor.data, Card.data = _moved_data(torch._C.TensorBase.data), _moved_data(Card.data)
    where = torch._C.TensorBase.device.__get__  # of every tensor: a DTensor's too
    Tensor.device = property(lambda self: found if (found := where(self)).type != "card" else _gpu(self))
    Tensor.is_cuda = property(lambda self: where(self).type == "card")
    Card.device, Card.is_cuda, Card.get_device = property(_gpu), property(lambda card: True), gpus.of
    for name in ("__repr__", "type", "__reduce_ex__"):
        setattr(Card, name, _spoken(getattr(Card, name)))
    for name, dtype in _LEGACY.items():
        setattr(torch.cuda, name, functools.partial(_legacy, dtype))
    tensor.NO_NUMPY = in_cudas_words(tensor.NO_NUMPY)
    late.in_words = in_cudas_words
    pinned.CardGenerator.device = property(lambda generator: torch.device("cuda", gpus.current))
    make = pinned._Generators.__call__
    pinned._Generators.__call__ = lambda cls, device="cpu": make(cls, device if gpus.number(device) is None else "card")


def _gpu(self: Tensor) -> torch.device:
    return _device("cuda", gpus.of(self))


class _Devices(type):
    """torch.device, which makes a GPU of a number."""

    def __call__(cls, *args, **kwargs) -> torch.device:
        return _device("cuda", *args) if args and type(args[0]) is int else _device(*args, **kwargs)

    def __instancecheck__(cls, value) -> bool:
        return isinstance(value, _device)


_device = torch.device


def _let_numbers_be_gpus() -> None:
    """device=1 is cuda:1."""
    makers = [one.__name__ for one in _device_constructors() if hasattr(torch, one.__name__)]
    likes = [f"{name}_like" for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")]
    news = ["new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"]
    for owner, names in ((torch, {*makers, *likes} - {"tensor", "as_tensor", "asarray"}), (Tensor, news)):
        for name in names:
            setattr(owner, name, _numbered(getattr(owner, name)))
    parse = torch._C._nn._parse_to
    torch._C._nn._parse_to = lambda *args, **kwargs: parse(*(_numbered_device(one) for one in args), **kwargs)
    torch.device = _Devices("device", (), {"__doc__": _device.__doc__, "__module__": "torch"})


def _numbered(make: Callable) -> Callable:
    @functools.wraps(make)
    def wrapper(*args, **kwargs):
        if type(kwargs.get("device")) is int:
            kwargs["device"] = _device("cuda", kwargs["device"])
        return make(*args, **kwargs)

    return wrapper


def _numbered_device(value: Any) -> Any:
    return _device("cuda", value) if type(value) is int else value


def _made(op, *args, **kwargs) -> Any:
    """What C++ asks of CUDA: a tensor from nothing."""
    index = gpus.checked(torch.device(kwargs.get("device") or "cuda").index)
    return gpus.put(_creates(op)(*args, **(kwargs | {"device": gpus.CARD})), index)


def _placing(make: Callable) -> Callable:
    @functools.wraps(make)
    def wrapper(*args, device=None, **kwargs):
        index = None if isinstance(device, int) and device is None else gpus.number(device)
        if index is None:
            return make(*args, **kwargs) if device is None else make(*args, device=device, **kwargs)
        return gpus.put(make(*args, device=gpus.CARD, **kwargs), index)

    return wrapper


def _moving(move: Callable) -> Callable:
    @functools.wraps(move)
    def to(self: Tensor, *args, **kwargs) -> Tensor:
        given = kwargs.get("device", args[0] if args else None)
        index = gpus.of(given) if isinstance(given, Card) else gpus.number(given)
        if index is None:
            return move(self, *args, **kwargs)
        if not isinstance(given, Card):
            if "device" in kwargs:
                kwargs["device"] = gpus.CARD
            else:
                args = (gpus.CARD, *args[1:])
        if isinstance(self, Card) and gpus.of(self) != index:
            kwargs["copy"] = True
        moved = move(self, *args, **kwargs)
        return moved if moved is self else gpus.put(moved, index)

    return to


def _moved_data(plain: Any) -> property:
    """p.data = p.data.cuda() puts the same object on the GPU, and .cpu() takes it off, if no graph knows it."""

    def put(self: Tensor, value: Tensor) -> None:
        known = self.grad_fn is not None or self.grad is not None or self._backward_hooks
        if isinstance(self, Card) != isinstance(value, Card) and not known and not self._post_accumulate_grad_hooks:
            other = value.detach()
            other = torch.nn.Parameter(other) if isinstance(self, torch.nn.Parameter) else other
            with contextlib.suppress(RuntimeError):  # somebody else holds it
                torch.utils.swap_tensors(self, other.requires_grad_(self.requires_grad))
                return
        plain.__set__(self, value)

    return property(plain.__get__, put)


def _cuda(self: Tensor, device=None, non_blocking: bool = False, memory_format=torch.preserve_format) -> Tensor:
    device = torch.device("cuda", gpus.checked(device if isinstance(device, int) else gpus.number(device)))
    return self.to(device, non_blocking=non_blocking, memory_format=memory_format)


def _spoken(method: Callable) -> Callable:
    """What a card says of itself, with CUDA's words."""

    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        said = method(self, *args, **kwargs)
        if isinstance(said, str):
            return said.replace("card:0", f"cuda:{gpus.of(self)}").replace("torch.card.", "torch.cuda.")
        if isinstance(said, tuple):  # a pickle remembers the GPU
            return said[0], tuple(f"cuda:{gpus.of(self)}" if one == "card:0" else one for one in said[1])
        return said

    return wrapper


_LEGACY = {
    f"{name}Tensor": dtype
    for name, dtype in {
        "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
        "Long": torch.int64, "Int": torch.int32, "Byte": torch.uint8, "Bool": torch.bool,
    }.items()
}  # fmt: skip


def _legacy(dtype: torch.dtype, *args) -> Tensor:
    """torch.cuda.FloatTensor(2, 3), or of a list."""
    if args and not isinstance(args[0], (int, torch.Size)):
        return torch.tensor(args[0], dtype=dtype, device="cuda")
    return torch.empty(*args, dtype=dtype, device="cuda")
