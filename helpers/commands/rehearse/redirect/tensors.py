"""Lets a script make tensors on "cuda", move them there, load them from a file, and ask where they are.

The practice card is a simulated GPU: a device of torch, called "card" or "card:0", whose tensors are `CardTensor`s and
compute on the CPU. Each process has one. The script says "cuda:1" and must read that again, so here functions and
properties of torch are replaced by ones that translate: `gpus` knows which number a tensor's GPU has in the script
(`gpu_of`), which number the script means (`gpu_index`), and writes it down for new tensors (`put`). `checked` gives a
number back, or the current one for None, and raises CUDA's error for a GPU that the node does not have.

A function here whose first argument is a function of torch takes the place of that one (`replacement`). Three more
parts are replaced for DTensors: the tensor from which DTensor learns the shape of a result, the state of the
generator from which the ranks draw their parts of one random tensor, and attention.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, _op_schema, _random
from torch.overrides import handle_torch_function
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map

from helpers.commands.rehearse.redirect import gpus
from helpers.devices.cards import errors, tensor, torch_patches
from helpers.devices.cards.kernels import _creates
from helpers.devices.cards.tensor import CardTensor

aten = torch.ops.aten
_libraries: list[torch.library.Library] = []  # a library's kernels exist only as long as the library
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
    """A message of the card as CUDA would write it."""
    # home_gpu: the GPU of the first tensor, which is the process's only one in most scripts; None before that tensor.
    number = gpus.current if gpus.home_gpu is None else gpus.home_gpu
    for cards, cudas in _WORDS.items():
        text = text.replace(cards, cudas.format(number))
    return text


def replace() -> None:
    """Replace torch's functions for tensors."""
    # Kernels for the device CUDA, to which C++ dispatches whatever is made on "cuda". `others` is the fallback for all
    # operations, of any library ("_"), without a kernel of their own.
    library, others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    _libraries.extend((library, others))
    library.impl("empty.memory_format", functools.partial(_made, aten.empty.memory_format), "CUDA")
    library.impl("empty_strided", functools.partial(_made, aten.empty_strided.default), "CUDA")
    others.fallback(lambda op, *args, **kwargs: _made(op, *args, **kwargs), "CUDA")
    for name in ("tensor", "as_tensor", "asarray"):
        setattr(torch, name, wrapper := _placing(getattr(torch, name)))
        _device_constructors().add(wrapper)  # the set of functions for which `with torch.device(...)` has an effect
    Tensor.new_tensor = _placing(Tensor.new_tensor)
    Tensor.to, Tensor.cuda = torch_patches.replacement(Tensor.to, _move), _cuda
    _let_numbers_be_gpus()
    Tensor.data, CardTensor.data = _moved_data(torch._C.TensorBase.data), _moved_data(CardTensor.data)
    real_device = torch._C.TensorBase.device.__get__  # of every tensor, a DTensor among them; "card" for one on a card
    Tensor.device = property(lambda self: _gpu(self) if real_device(self).type == "card" else real_device(self))
    Tensor.is_cuda = property(lambda self: real_device(self).type == "card")
    CardTensor.device, CardTensor.is_cuda = property(_gpu), property(lambda card: True)
    CardTensor.get_device = gpus.gpu_of
    for name in ("__repr__", "type", "__reduce_ex__"):
        setattr(CardTensor, name, torch_patches.replacement(getattr(CardTensor, name), _translated))
    for name, dtype in _LEGACY.items():
        setattr(torch.cuda, name, functools.partial(_legacy, dtype))
    tensor.NO_NUMPY = in_cudas_words(tensor.NO_NUMPY)  # a message of the card
    errors.translate = in_cudas_words  # through which the card sends the messages of its exceptions
    torch_patches.CardGenerator.device = property(lambda generator: torch.device("cuda", gpus.current))
    make = torch_patches._Generators.__call__  # the class of torch.Generator: its call makes a generator
    device_of = lambda device: device if gpus.gpu_index(device) is None else "card"  # noqa: E731
    torch_patches._Generators.__call__ = lambda cls, device="cpu": make(cls, device_of(device))


def _gpu(self: Tensor) -> torch.device:
    """The device of a card's tensor as the script is told it."""
    return _device("cuda", gpus.gpu_of(self))


class _Devices(type):
    """The metaclass of the new torch.device: torch.device(1) is cuda:1, and all devices are its instances."""

    def __call__(cls, *args, **kwargs) -> torch.device:
        return _device("cuda", *args) if args and type(args[0]) is int else _device(*args, **kwargs)

    def __instancecheck__(cls, value) -> bool:
        return isinstance(value, _device)


_device = torch.device  # torch's own class


def _let_numbers_be_gpus() -> None:
    """Wherever a function takes a device, device=1 means cuda:1, as in a torch with CUDA."""
    makers = [one.__name__ for one in _device_constructors() if hasattr(torch, one.__name__)]  # torch.zeros and so on
    likes = [f"{name}_like" for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")]
    news = ["new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"]
    # Without the three functions of torch that `_placing` has wrapped, because those read a number as a GPU already.
    for owner, names in ((torch, {*makers, *likes} - {"tensor", "as_tensor", "asarray"}), (Tensor, news)):
        for name in names:
            setattr(owner, name, torch_patches.replacement(getattr(owner, name), _numbered))
    parse = torch._C._nn._parse_to  # reads the arguments of Module.to
    torch._C._nn._parse_to = lambda *args, **kwargs: parse(*(_numbered_device(one) for one in args), **kwargs)
    torch.device = _Devices("device", (), {"__doc__": _device.__doc__, "__module__": "torch"})


def _numbered(make: Callable, /, *args, **kwargs):
    """Calls a function that makes tensors, with a number as its device read as a GPU."""
    if "device" in kwargs:
        kwargs["device"] = _numbered_device(kwargs["device"])
    return make(*args, **kwargs)


def _numbered_device(value: Any) -> Any:
    """A number as a GPU, any other value as it is."""
    return _device("cuda", value) if type(value) is int else value


def _made(op, *args, **kwargs) -> Any:
    """The kernel for CUDA of an operation that makes a tensor from nothing: it makes the tensor on the card."""
    index = gpus.checked(torch.device(kwargs.get("device") or "cuda").index)
    # _creates(op) is the card's own kernel for the operation.
    return gpus.made_on(index, lambda: _creates(op)(*args, **(kwargs | {"device": gpus.CARD})))


def _placing(make: Callable) -> Callable:
    """A function that makes a tensor of data, which takes "cuda" as its device, also in `with torch.device("cuda")`.

    The data may be a list in which tensors of the card stand. Their numbers are read, as torch does.
    """

    @functools.wraps(make)
    def wrapper(*args, device=None, **kwargs):
        if torch._C._is_torch_function_mode_enabled():  # a mode must see this function, not the one that it replaces
            named = {} if device is None else {"device": device}
            return handle_torch_function(wrapper, (), *args, **kwargs, **named)
        args, kwargs = _with_numbers(args), _with_numbers(kwargs)
        index = gpus.gpu_index(device)
        if index is None:
            return make(*args, **kwargs) if device is None else make(*args, device=device, **kwargs)
        return gpus.made_on(index, lambda: make(*args, device=gpus.CARD, **kwargs))

    return wrapper


def _with_numbers(arguments: Any) -> Any:
    """The arguments, in which lists and tuples hold CPU tensors in place of tensors of the card."""
    lists = lambda one: isinstance(one, (list, tuple))  # noqa: E731
    numbers = lambda one: one.cpu() if isinstance(one, CardTensor) else one  # noqa: E731
    convert = lambda one: tree_map(numbers, one) if lists(one) else one  # noqa: E731
    if isinstance(arguments, dict):
        return {name: convert(one) for name, one in arguments.items()}
    return tuple(convert(one) for one in arguments)


def _move(move: Callable, self: Tensor, *args, **kwargs) -> Tensor:
    """Calls Tensor.to for "cuda", a number, or another tensor on a card as its target."""
    target = kwargs.get("device", args[0] if args else None)  # a device, a dtype or another tensor
    index = gpus.gpu_of(target) if isinstance(target, CardTensor) else gpus.gpu_index(target)
    if index is None:
        return move(self, *args, **kwargs)
    if not isinstance(target, CardTensor):
        if "device" in kwargs:
            kwargs["device"] = gpus.CARD
        else:
            args = (gpus.CARD, *args[1:])
    if isinstance(self, CardTensor) and gpus.gpu_of(self) != index:
        kwargs["copy"] = True  # on the same card, but for the script it is another GPU
    return gpus.made_on(index, lambda: move(self, *args, **kwargs))


def _moved_data(plain: Any) -> property:
    """The property `data` of a tensor. plain: torch's own.

    After p.data = p.data.cuda() the same object p is on the GPU, and p.data.cpu() takes it off again. That swaps the
    objects, which is possible only if autograd does not know p yet.
    """

    def put(self: Tensor, value: Tensor) -> None:
        is_known = self.grad_fn is not None or self.grad is not None
        has_hooks = self._backward_hooks or self._post_accumulate_grad_hooks
        if isinstance(self, CardTensor) != isinstance(value, CardTensor) and not is_known and not has_hooks:
            other = value.detach()
            other = torch.nn.Parameter(other) if isinstance(self, torch.nn.Parameter) else other
            with contextlib.suppress(RuntimeError):  # torch refuses if some C++ object holds one of the two
                torch.utils.swap_tensors(self, other.requires_grad_(self.requires_grad))
                return
        plain.__set__(self, value)

    return property(plain.__get__, put)


def _cuda(self: Tensor, device=None, non_blocking: bool = False, memory_format=torch.preserve_format) -> Tensor:
    """Tensor.cuda: to the GPU with this number, or to the current one."""
    device = torch.device("cuda", gpus.checked(device if isinstance(device, int) else gpus.gpu_index(device)))
    return self.to(device, non_blocking=non_blocking, memory_format=memory_format)


def _translated(method: Callable, self, *args, **kwargs):
    """Calls a method that returns a text or a pickle with the card's name in it, and puts the GPU's name there."""
    value = method(self, *args, **kwargs)
    if isinstance(value, str):
        return value.replace("card:0", f"cuda:{gpus.gpu_of(self)}").replace("torch.card.", "torch.cuda.")
    if isinstance(value, tuple):  # a pickle remembers the GPU
        return value[0], tuple(f"cuda:{gpus.gpu_of(self)}" if one == "card:0" else one for one in value[1])
    return value


_LEGACY = {  # old constructors in torch.cuda -> dtype
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "LongTensor": torch.int64, "IntTensor": torch.int32,
    "ByteTensor": torch.uint8, "BoolTensor": torch.bool,
}  # fmt: skip


def _legacy(dtype: torch.dtype, *args) -> Tensor:
    """torch.cuda.FloatTensor(2, 3), or of a list."""
    if args and not isinstance(args[0], (int, torch.Size)):
        return torch.tensor(args[0], dtype=dtype, device="cuda")
    return torch.empty(*args, dtype=dtype, device="cuda")


_remembered: list[int] = []  # in a file that was saved on real GPUs, the numbers of the GPUs that its storages name


class _Probe:
    """Stands for a storage when a `map_location` function is asked: the number of a GPU, or itself for the CPU."""

    def cuda(self, device=None, non_blocking: bool = False) -> int:
        return gpus.checked(device if isinstance(device, int) else gpus.gpu_index(device))

    def cpu(self) -> _Probe:
        return self


def replace_load() -> None:
    """Replace torch.load, and what torch does with a storage in a file that names a GPU."""
    usual = torch.load
    torch.load = torch.serialization.load = torch_patches.replacement(usual, _load)
    # (priority, what names the location of a storage that is saved, what places one that is loaded). The priority 5
    # comes before torch's own functions, and None leaves the naming to them.
    torch.serialization.register_package(5, lambda storage: None, _restore)


def _load(usual, f, map_location=None, *args, **kwargs) -> Any:
    """torch.load: what belongs on a GPU is loaded to the CPU first, and then moved. usual: torch's own."""
    index = gpus.gpu_index(map_location)
    if callable(map_location):
        chosen = map_location(_Probe(), "cuda:0")  # asked once, as for a storage that was saved on the first GPU
        # A number is the GPU that the function has chosen by `storage.cuda(1)`.
        index, map_location = (chosen, None) if isinstance(chosen, int) else (None, "cpu")
    _remembered.clear()
    loaded = usual(f, "cpu" if index is not None else map_location, *args, **kwargs)
    if index is None and _remembered and map_location is None:
        index = gpus.checked(_remembered[0])
    return loaded if index is None else tree_map(functools.partial(_moved, torch.device("cuda", index)), loaded)


def _moved(device: torch.device, value: Any) -> Any:
    return value.to(device) if isinstance(value, (Tensor, torch.nn.Module)) else value


def _restore(storage, location: str):
    """A storage that was saved on a GPU stays on the CPU until the whole file is loaded. None for any other storage."""
    if not location.startswith("cuda"):
        return None
    _remembered.append(torch.device(location).index or 0)
    return storage


def replace_dtensor() -> None:
    """Replace the parts of DTensor that the docstring of this module names."""
    _op_schema._rebuild_tensor_from_dtensor_meta = _shaped
    _random._PhiloxState = GeneratorState
    usual = torch.nn.functional.scaled_dot_product_attention
    attention = torch_patches.replacement(usual, _attention)
    torch_patches.replace_in_torch("scaled_dot_product_attention", usual, attention)


def _attention(usual, query: Tensor, key: Tensor, value: Tensor, attn_mask=None, *args, **kwargs) -> Tensor:
    """Attention, which for DTensors runs on the parts of this rank, as the kernels of CUDA do. usual: torch's own.

    On CUDA, torch chooses a fused kernel before DTensor sees the call. DTensor knows these kernels: it divides the
    batch (dimension 0) or the heads (1), and makes all tensors complete in every other dimension. A device that is made
    in Python would ask DTensor for the choice, which DTensor does not know.
    """
    if not isinstance(query, DTensor):
        return usual(query, key, value, attn_mask, *args, **kwargs)
    mesh = query.device_mesh
    placements = [one if one in (Shard(0), Shard(1)) else Replicate() for one in query.placements]
    local = [one.redistribute(mesh, placements).to_local() for one in (query, key, value)]
    mask = attn_mask.full_tensor() if isinstance(attn_mask, DTensor) else attn_mask
    return DTensor.from_local(usual(*local, mask, *args, **kwargs), mesh, placements)


def _shaped(spec) -> Tensor:
    """The tensor from which DTensor learns the shape of a result. spec: of a DTensor.

    torch makes it on the device of the mesh, "cuda", which a build of torch without CUDA cannot do.
    """
    return torch.empty_strided(*spec.tensor_meta[:2], dtype=spec.tensor_meta.dtype)


class GeneratorState:
    """The state of a random generator with an offset, as the generator of a GPU has.

    The card's generator is that of the CPU, which has no offset. Here each offset is another seed instead.
    """

    def __init__(self, state: Tensor):
        self.state = self._begin = state.cpu()

    @property
    def offset(self) -> Tensor:
        """Always 0, because the setter counts each offset from the state at the beginning."""
        return torch.zeros(1, dtype=torch.int64)

    @offset.setter
    def offset(self, offset: Tensor) -> None:
        generator = torch.Generator()
        generator.set_state(self._begin)
        seed = torch.randint(1 << 62, (), generator=generator) + offset
        self.state = generator.manual_seed(seed.item()).get_state()
