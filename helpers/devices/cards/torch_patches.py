"""Patches torch for practice cards: pinned memory, a card's generators, and storages that change their size.

A practice card is a simulated GPU, a device that is made in Python, for which torch has none of these. `patch` replaces
the functions of torch that are concerned. `replace_in_torch` puts a function in another one's place in every module of
torch; `python -m helpers rehearse`, which runs scripts for CUDA on cards, uses it as well.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.jit._builtins import _register_builtin
from torch.overrides import handle_torch_function
from torch.utils._device import _device_constructors

from helpers.devices.cards.errors import check_index, raise_or_defer
from helpers.devices.cards.tensor import CardTensor, card_generators, memory


def replace_in_torch(name: str, old: Any, new: Any) -> None:
    """Put `new` in the place of `old` in each module of torch that calls it `name`."""
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module.__name__.startswith("torch"):
            if vars(module).get(name) is old:
                setattr(module, name, new)


def replacement(usual: Callable, new: Callable) -> Callable:
    """A function with the name of `usual`, which calls new(usual, …) with the arguments that it gets.

    It may take the place of a function or of a method, whose `self` is then the second argument of `new`.
    """

    @functools.wraps(usual)
    def wrapper(*args, **kwargs):
        return new(usual, *args, **kwargs)

    return wrapper


# Functions with the argument pin_memory; functions that return random numbers; methods that fill a tensor with them.
_MAKERS = "empty zeros ones full rand randn randint tensor empty_like zeros_like ones_like".split()
_DRAWERS = "normal bernoulli multinomial poisson randperm rand randn randint rand_like randn_like".split()
_FILLERS = (
    "normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ bernoulli multinomial".split()
)
_Generator = torch.Generator  # torch's own


def patch() -> None:
    """Teach pinned memory, generators and storages that change their size about the card, in this process."""
    for name in _MAKERS:
        wrapper = _pinning(getattr(torch, name))
        setattr(torch, name, wrapper)
        _device_constructors().add(wrapper)  # the set of functions for which `with torch.device(...)` has an effect
        _register_builtin(wrapper, f"aten::{name}")  # for TorchScript, which torch's ZeroRedundancyOptimizer compiles
    for owner, names in ((torch, _DRAWERS), (Tensor, _FILLERS)):
        for name in names:
            usual = getattr(owner, name)
            setattr(owner, name, wrapper := replacement(usual, _draw))
            if owner is torch:
                replace_in_torch(name, usual, wrapper)
                _register_builtin(wrapper, f"aten::{name}")
    torch.Tensor.pin_memory, torch.Tensor.is_pinned = _pin_memory, _is_pinned
    # A new class whose call makes one of two kinds of generator; isinstance accepts both.
    torch.Generator = _Generators("Generator", (), {"__doc__": _Generator.__doc__})
    torch.UntypedStorage.resize_ = replacement(torch.UntypedStorage.resize_, _resize)


def _pinning(make):
    """The function `make`, changed so that pin_memory=True returns a tensor that says it is pinned."""

    @functools.wraps(make)
    def wrapper(*args, pin_memory: bool = False, **kwargs):
        if torch._C._is_torch_function_mode_enabled():  # a mode must see this function, not the one that it replaces
            pinned = {"pin_memory": True} if pin_memory else {}
            return handle_torch_function(wrapper, (), *args, **kwargs, **pinned)
        made = make(*args, **kwargs)
        return made.pin_memory() if pin_memory else made

    return wrapper


def _draw(draw: Callable, /, *args, **kwargs):
    """Calls `draw`, and refuses a card's generator for a CPU tensor. tensor.py refuses the reverse."""
    drawn = draw(*args, **kwargs)
    if isinstance(kwargs.get("generator"), CardGenerator) and not isinstance(drawn, CardTensor):
        raise_or_defer(RuntimeError("Expected a 'cpu' device type for generator but found 'card'"))
    return drawn


def _pin_memory(tensor: Tensor, device=None) -> Tensor:
    """tensor.pin_memory(): a copy that says it is pinned. Raises RuntimeError, as CUDA does, for a card's tensor."""
    if isinstance(tensor, CardTensor):
        raise RuntimeError("cannot pin 'torch.card.FloatTensor' only dense CPU tensors can be pinned")
    if _is_pinned(tensor):
        return tensor
    pinned = tensor.clone()
    pinned._is_pinned = True
    return pinned


def _is_pinned(tensor: Tensor, device=None) -> bool:
    """tensor.is_pinned(): whether it, or the tensor of which it is a view, says that it is pinned."""
    base = tensor._base
    return getattr(tensor, "_is_pinned", False) or (base is not None and _is_pinned(base))


class CardGenerator(_Generator):
    """Random numbers for the card, made by the CPU: the same as the CPU's from the same seed."""

    device = property(lambda self: torch.device("card", 0))

    def __init__(self) -> None:
        card_generators.add(self._cdata)

    def __del__(self) -> None:
        card_generators.discard(self._cdata)


class _Generators(type):
    """The type of the new torch.Generator, which makes a card's generator where a card is asked for."""

    def __call__(cls, device="cpu"):
        on_card = check_index(torch.device(device)).type == "card"
        return CardGenerator() if on_card else _Generator(device)

    def __instancecheck__(cls, value) -> bool:
        return isinstance(value, _Generator)

    def __subclasscheck__(cls, other) -> bool:
        return issubclass(other, _Generator)


def _resize(resize: Callable, storage, num_bytes: int):
    """Calls storage.resize_() and counts the bytes on the card. FSDP frees and refills its storages in this way."""
    if memory.holds(storage):
        memory.resize(storage, num_bytes)
        if not num_bytes:
            storage.__dict__.pop("_uses", None)  # what races.py knows of the memory that it gives back
    return resize(storage, num_bytes)
