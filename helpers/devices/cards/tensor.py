"""Implements a tensor on a practice card: it says device='card:0', and a CPU tensor inside it holds the numbers.

A practice card is a simulated GPU. A `CardTensor` is a wrapper subclass of Tensor, and the CPU tensor inside is its
attribute `_raw`. Every operation comes through `__torch_dispatch__`, below autograd: devices are checked, the CPU
computes with the tensors inside, and the result is wrapped again. The operations of torch.distributed come the same
way, so gloo gets the tensor inside.

A wrapper subclass is made by `Tensor._make_wrapper_subclass`. This gives a tensor with a shape, dtype and device but
without memory of its own, and it is the subclass that stores the elements elsewhere. Its `__torch_function__`, which
torch would call earlier, above autograd, is disabled, because `__torch_dispatch__` does everything.

`memory` counts the bytes on the card (memory.py). `races` finds memory that is used on two streams at once (races.py).
An error is raised with `raise_or_defer`, because an error inside a backward must wait until the backward ends
(errors.py).

`OffCardTensor` is a parameter that was on the card until `parameter.data = cpu_tensor` moved it to the CPU, as FSDP1
does to save memory. Autograd knows the C++ object, which says card:0 and cannot change. Therefore the Python object
answers and computes as the CPU tensor in its attribute `_cpu`, until another `.data =` puts it back on the card.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from helpers.devices.cards import races, streams
from helpers.devices.cards.errors import (
    INDEXING,
    NO_NUMPY,
    check_index,
    check_together,
    placeholder_result,
    raise_or_defer,
)
from helpers.devices.cards.memory import CardMemory

_INSIDE = ("_raw", "_cpu")  # the attributes with the CPU tensor: of a CardTensor, and of an OffCardTensor


class OffCardTensor(Tensor):
    """A parameter that was moved from the card to the CPU, see the top of this file."""

    _cpu: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: self._cpu.device)
    is_cuda = property(lambda self: False)
    data = property(Tensor.detach, lambda self, other: set_data(self, other))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if len(types) > 1:  # then CardTensor's own dispatch handles it
            return NotImplemented
        return func(*off_card_as_cpu(args), **off_card_as_cpu(kwargs or {}))

    def untyped_storage(self) -> torch.UntypedStorage:
        return self._cpu.untyped_storage()


def off_card_as_cpu(values):
    """The same values, with each OffCardTensor replaced by the CPU tensor inside."""
    return tree_map_only(OffCardTensor, lambda one: one._cpu, values)


def set_data(tensor: Tensor, other: Tensor) -> None:
    """`tensor.data = other`, for a tensor that is on the card or was taken off it: it moves to where `other` is."""
    if isinstance(other, OffCardTensor):
        other = other._cpu
    wrapper = other
    if not hasattr(other, "_raw"):  # a CPU tensor: C++ needs one that says card:0
        wrapper = Tensor._make_wrapper_subclass(
            OffCardTensor, other.size(), strides=other.stride(), dtype=other.dtype, device="card:0"
        )
        wrapper._cpu = other
    torch._C.TensorBase.data.__set__(tensor, wrapper)  # torch's own setter, since both classes here replace it
    # The Python object stays the same, but takes the class and the CPU tensor of the wrapper, which may be itself.
    inside = {name: vars(wrapper)[name] for name in _INSIDE if name in vars(wrapper)}
    for name in _INSIDE:
        tensor.__dict__.pop(name, None)
    tensor.__class__ = type(wrapper)
    tensor.__dict__.update(inside)


aten = torch.ops.aten
CPU = torch.device("cpu")
SEEDED = torch.Tag.nondeterministic_seeded  # torch's tag of operations that draw random numbers
memory = CardMemory()  # counts the bytes of all card tensors of this process
card_generator = torch.Generator()  # the card's own random numbers, made by the CPU
card_generators: set[int] = set()  # addresses in C++ of the generators that scripts made for the card
_drawing = threading.RLock()  # held while the card's generator takes the place of the CPU's


class CardTensor(Tensor):
    """A dense tensor on card:0. torch's functions make it; `CardTensor(raw)` puts a CPU tensor there without a copy."""

    _raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: Tensor) -> CardTensor:
        if raw.layout is not torch.strided:
            raise NotImplementedError(f"a practice card holds dense tensors only, and this one is {raw.layout}")
        # A view of a tensor that was made before inference mode is no inference tensor, so its wrapper must be none.
        if torch.is_inference_mode_enabled() and not raw.is_inference():
            with torch.inference_mode(False):
                return CardTensor(raw)
        if raw.is_conj() or raw.is_neg() or raw._is_zerotensor():  # flags of C++ that the wrapper would not have
            raw = torch.zeros_like(raw) if raw._is_zerotensor() else raw.resolve_conj().resolve_neg()
        memory.charge(raw.untyped_storage())  # raises if the card is full
        card = Tensor._make_wrapper_subclass(
            cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device="card:0"
        )
        card._raw = raw
        return card

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if len(types) > 1:  # a wrapper around cards, such as torch's AsyncCollectiveTensor, opens itself first
            if OffCardTensor not in types:
                return NotImplemented
            args, kwargs = off_card_as_cpu(args), off_card_as_cpu(kwargs or {})
        kwargs = kwargs or {}
        if func in _MOVES:  # torch turns it into the operations that it consists of, which come here one by one
            return func.decompose(*args, **kwargs)
        if func is aten._pack_padded_sequence.default:
            return _packed(*args)
        seen = _Seen()
        inside = [seen.unwrap(value) for value in args]
        named = {name: seen.unwrap(value) for name, value in kwargs.items()} if kwargs else {}
        if seen.cards and (seen.others or func in INDEXING):
            # INDEXING: operations for which CUDA has a message of its own about devices.
            check_together(func, args, kwargs, CardTensor)  # raises if devices are mixed as CUDA does not allow
        target = _target(named)  # "card" or "cpu": where the result goes
        try:
            if func in SPECIAL_OPERATIONS:
                out = SPECIAL_OPERATIONS[func](inside, seen.cards)
            elif SEEDED in func.tags:
                out = run_with_card_generator(func, inside, named, checked=bool(seen.cards))
            else:
                out = func(*inside, **named)
            if target == "card":
                out = seen.wrap(out)
        except Exception as error:
            raise_or_defer(error)  # it returns if the error must wait for the end of a backward
            return placeholder_result(func, seen.wrap)
        # Races need a second stream, a tensor of the CPU, or a result by which the host waits for the card.
        if streams.is_watching or seen.others or type(out) is not CardTensor:
            races.note_operation(func, args, kwargs, out)
        return out

    # -- what a learner reads --------------------------------------------------------------------------------------
    def __repr__(self, *, tensor_contents=None) -> str:
        races.read_by_host(self, "repr")
        text = repr(self._raw)[:-1] + ", device='card:0'"
        if self.grad_fn is not None:
            return f"{text}, grad_fn=<{type(self.grad_fn).__name__}>)"
        return f"{text}, requires_grad=True)" if self.requires_grad else f"{text})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def tolist(self):
        races.read_by_host(self, "tolist")
        return self._raw.tolist()

    def numpy(self, *, force: bool = False):
        if not force:
            raise TypeError(NO_NUMPY)
        return self.detach().cpu().numpy()

    def __array__(self, *args, **kwargs):
        raise TypeError(NO_NUMPY)

    # -- what torch's Python code calls ----------------------------------------------------------------------------
    def data_ptr(self) -> int:
        return self._raw.data_ptr()

    def record_stream(self, stream) -> None:
        """Keep its memory, when it is freed, until this stream has done the work that it has now."""
        races.lend_to_stream(self, stream)

    def untyped_storage(self) -> torch.UntypedStorage:
        return self._raw.untyped_storage()

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        set_data(self, other)

    def __deepcopy__(self, memo: dict) -> Tensor:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment"
            )
        if id(self) not in memo:
            with torch.no_grad():
                copied = self.clone()
            copied.requires_grad_(self.requires_grad)
            copied.__dict__.update(self._own_attributes())
            copied.grad = None if self.grad is None else self.grad.__deepcopy__(memo)
            memo[id(self)] = copied
        return memo[id(self)]

    def _own_attributes(self) -> dict:
        """The attributes that Python code gave to this tensor."""
        return {name: value for name, value in self.__dict__.items() if name != "_raw"}

    def __reduce_ex__(self, protocol: int):
        if getattr(self, "_is_param", False):  # torch's mark of a Parameter that is of another class
            return self._rebuilt_from(self.detach())
        rebuild = torch._utils._rebuild_device_tensor_from_cpu_tensor  # torch.load allows it, also with map_location
        return rebuild, (self._raw, self.dtype, "card:0", self.requires_grad)

    def _rebuilt_from(self, data: Tensor) -> tuple:
        """How pickle makes this parameter again, with the attributes that Python gave it."""
        return torch._utils._rebuild_parameter_with_state, (data, self.requires_grad, {}, self._own_attributes())

    def reduced_to_cpu(self) -> tuple:
        """Like __reduce_ex__, but it makes a CPU tensor, for a process that may have no card."""
        if getattr(self, "_is_param", False):
            return self._rebuilt_from(self._raw)
        return copy.copy, (self._raw,)  # pickle must get a function: this one gives back the CPU tensor


class _Seen:
    """Unwraps the arguments of one operation and wraps its result.

    cards, others: the tensors among the arguments that are on the card, and those that are not.
    """

    __slots__ = ("cards", "others")

    def __init__(self) -> None:
        self.cards: list[CardTensor] = []
        self.others: list[Tensor] = []

    def unwrap(self, value):
        """The CPU tensor inside a CardTensor, also inside lists and tuples; any other value as it is."""
        if isinstance(value, CardTensor):
            self.cards.append(value)
            return value._raw
        if isinstance(value, Tensor):
            self.others.append(value)
        elif type(value) in (list, tuple):
            return type(value)([self.unwrap(one) for one in value])
        return value

    def wrap(self, out):
        """The result on the card. An argument that was changed in place comes back as the same object."""
        if isinstance(out, Tensor):
            for card in self.cards:
                if card._raw is out:
                    return refresh_wrapper(card)
            # cpu_tensor.copy_(card) returns the CPU tensor.
            return out if any(other is out for other in self.others) else CardTensor(out)
        if type(out) in (list, tuple):
            return type(out)([self.wrap(one) for one in out])
        return out


def refresh_wrapper(card: CardTensor) -> CardTensor:
    """Update the wrapper after its tensor was changed in place (resize_, t_, squeeze_, set_, out=), and return it."""
    raw = card._raw
    if raw.shape != card.shape or raw.stride() != card.stride() or raw.storage_offset() != card.storage_offset():
        Tensor.data.__set__(card, CardTensor(raw))
    else:
        memory.charge(raw.untyped_storage())
    return card


def _target(named: dict) -> str:
    """The kind of device for the result. In `named`, the card becomes the CPU, and pin_memory is left out."""
    device = named.get("device")
    named.pop("pin_memory", None)
    if device is None:
        return "card"
    where = check_index(torch.device(device)).type
    named["device"] = CPU if where == "card" else device
    return where


def run_with_card_generator(func, args, kwargs: dict, *, checked: bool = True):
    """Run an operation that draws random numbers, from the card's generator or from the one that is given.

    checked: whether to raise the error of CUDA for a given generator that is not for the card.
    """
    given = kwargs.get("generator")
    if given is not None:
        if checked and not is_for_cards(given):
            raise_or_defer(RuntimeError("Expected a 'card' device type for generator but found 'cpu'"))
        return func(*args, **kwargs)
    with _drawing, _card_generator_as_default():
        return func(*args, **kwargs)


def is_for_cards(generator: torch.Generator) -> bool:
    """Whether it was made as torch.Generator("card"). On its way through C++ it loses its class but not its address."""
    return generator._cdata in card_generators


@contextlib.contextmanager
def _card_generator_as_default():
    """Inside this context, the CPU's default generator has the state of the card's."""
    before = torch.default_generator.get_state()
    torch.default_generator.set_state(card_generator.get_state())
    try:
        yield
    finally:
        card_generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(before)


def _packed(padded: CardTensor, lengths: Tensor, batch_first: bool) -> tuple[CardTensor, Tensor]:
    """torch's _pack_padded_sequence: the rows, on the card, and the number of rows of each step, on the CPU."""
    if isinstance(lengths, CardTensor):
        raise_or_defer(
            RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got 1D {lengths.device} Long tensor")
        )
    rows, sizes = aten._pack_padded_sequence(padded._raw, off_card_as_cpu(lengths), batch_first)
    return CardTensor(rows), sizes


def _embedding(inside: list, cards: list) -> Tensor:
    if any(inside[4:]):  # the fifth argument is `sparse`
        raise NotImplementedError("a practice card holds dense tensors only: Embedding(sparse=True) would need others")
    return aten.embedding.default(*inside)


# Moves to another device. Below autograd, as in DTensor's losses, torch has not decomposed them yet, and the device is
# a positional argument.
_MOVES = {aten.to.device, aten.to.other, aten.to.dtype_layout}
# A functional collective is one of torch.ops._c10d_functional: it returns a new tensor and writes none in place.
_functional = threading.local()  # .depth: in how many functional collectives this thread is


def is_in_functional() -> bool:
    """Whether this thread is in a functional collective of card tensors. Its group gets the CPU tensors inside."""
    return getattr(_functional, "depth", 0) > 0


def _functional_collective(op):
    """The operation with the CPU tensors inside, during which `is_in_functional()` is true."""

    def call(inside: list, cards: list):
        _functional.depth = getattr(_functional, "depth", 0) + 1
        try:
            return op(*inside)
        finally:
            _functional.depth -= 1

    return call


def _awaited(inside: list, cards: list) -> Tensor:
    """The result of a functional collective that is in flight, after a wait for it.

    torch would put it into a wrapper that waits at its first use, but it would wrap the CPU tensor, which nobody uses.
    """
    (raw,) = inside
    SPECIAL_OPERATIONS[torch.ops._c10d_functional.wait_tensor.default](inside, cards)
    return raw.view_as(raw)  # a new object, since `_Seen.wrap` takes the argument itself for one changed in place


def _functionals() -> Iterator:
    """Every operation that torch has for functional collectives, with its overloads."""
    for name in torch._C._dispatch_get_all_op_names():
        space, _, name = name.partition("::")
        if space == "_c10d_functional":
            name, _, overload = name.partition(".")
            yield getattr(getattr(torch.ops._c10d_functional, name), overload or "default")


# Operations that are replaced: op -> function of two lists, the unwrapped arguments and the card tensors among them.
SPECIAL_OPERATIONS = {op: _functional_collective(op) for op in _functionals()}
SPECIAL_OPERATIONS |= {op: _awaited for op in SPECIAL_OPERATIONS if op.name().endswith("::_wrap_tensor_autograd")}
# record_stream has nothing to do here: CPU memory belongs to no stream, and CardTensor.record_stream tells `races`.
SPECIAL_OPERATIONS |= {aten.record_stream.default: lambda inside, cards: None, aten.embedding.default: _embedding}
