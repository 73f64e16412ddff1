"""Tensors: made on "cuda", moved there, and asked where they are."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from helpers.devices.cards import late, pinned, tensor
from helpers.devices.cards.kernels import _creates
from helpers.devices.cards.tensor import Card
from helpers.rehearse.redirect import gpus

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
        text = text.replace(ours, theirs.format(gpus.local_rank if gpus.home is None else gpus.home))
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
    Card.device = property(lambda card: torch.device("cuda", gpus.of(card)))
    Card.is_cuda = property(lambda card: True)
    Card.get_device = gpus.of
    for name in ("__repr__", "type", "__reduce_ex__"):
        setattr(Card, name, _spoken(getattr(Card, name)))
    for name, dtype in _LEGACY.items():
        setattr(torch.cuda, name, functools.partial(_legacy, dtype))
    tensor.NO_NUMPY = in_cudas_words(tensor.NO_NUMPY)
    late.in_words = in_cudas_words
    pinned.CardGenerator.device = property(lambda generator: torch.device("cuda", gpus.current))
    make = pinned._Generators.__call__
    pinned._Generators.__call__ = lambda cls, device="cpu": make(cls, device if gpus.number(device) is None else "card")


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


def everywhere(name: str, old: Any, new: Any) -> None:
    """Under every name by which torch's own modules have it already."""
    import sys

    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module.__name__.startswith("torch"):
            if vars(module).get(name) is old:
                setattr(module, name, new)
