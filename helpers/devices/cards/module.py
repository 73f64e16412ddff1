"""Provides torch.card: what torch and scripts ask of a device by name, with the names of torch.cuda.

A practice card is a simulated GPU, a device that is made in Python. Its operations are done when a call returns.
streams.py records which stream or program would wait for which on a GPU. tensor.py has the card's memory and generator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace

import torch

from helpers.devices.cards import streams
from helpers.devices.cards.errors import check_index
from helpers.devices.cards.tensor import card_generator, memory
from helpers.devices.cards.torch_patches import replacement
from helpers.quantities.units import format_bytes

NAME = "practice card"


def _nothing(*args, **kwargs) -> None:
    """For functions that have nothing to do here."""


def _yes(*args, **kwargs) -> bool:
    return True


class CardModule:
    """The module `torch.card`. Scripts and torch's own code call its attributes by the names of torch.cuda."""

    Stream, Event, memory = streams.CardStream, streams.CardEvent, memory
    _initialized = True  # else torch.utils.checkpoint does not restore the generator's state
    is_initialized = is_available = is_bf16_supported = _yes
    empty_cache = _nothing
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    _is_in_bad_fork = staticmethod(lambda: False)  # torch.manual_seed asks for it before it seeds a device
    current_stream = staticmethod(lambda device=None: streams.current())
    default_stream = staticmethod(lambda device=None: streams.DEFAULT)
    stream, set_stream = staticmethod(streams.on), staticmethod(streams.set_stream)
    synchronize = staticmethod(lambda device=None: streams.host_waits("synchronize", whole_card=True))
    get_amp_supported_dtype = staticmethod(lambda: [torch.float16, torch.bfloat16])
    get_device_name = staticmethod(lambda device=None: NAME)
    get_device_capability = staticmethod(lambda device=None: (9, 0))  # an H100's

    def get_device_properties(self, device=None) -> SimpleNamespace:
        return SimpleNamespace(name=NAME, major=9, minor=0, multi_processor_count=1, total_memory=memory.capacity)

    def set_device(self, device) -> None:
        check_index(torch.device("card", device) if isinstance(device, int) else torch.device(device))

    def device(self, index):
        self.set_device(0 if index is None else index)
        return contextlib.nullcontext()

    # -- memory ----------------------------------------------------------------------------------------------------
    memory_allocated = staticmethod(lambda device=None: memory.allocated_now())
    max_memory_allocated = staticmethod(lambda device=None: max(memory.peak, memory.allocated_now()))
    reset_peak_memory_stats = staticmethod(lambda device=None: memory.restart_peak())
    memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated  # there is no cache of freed memory

    # Free bytes and all bytes.
    mem_get_info = staticmethod(lambda device=None: (max(0, memory.capacity - memory.allocated_now()), memory.capacity))

    def memory_summary(self, device=None, abbreviated: bool = False) -> str:
        sizes = memory.allocated_now(), memory.peak, memory.capacity
        allocated, peak, capacity = (format_bytes(size, binary=True) for size in sizes)
        return f"card 0: {allocated} allocated, at most {peak}, of {capacity}"

    # -- random numbers --------------------------------------------------------------------------------------------
    manual_seed, seed, initial_seed = card_generator.manual_seed, card_generator.seed, card_generator.initial_seed
    manual_seed_all = manual_seed

    get_rng_state = staticmethod(lambda device="card": card_generator.get_state())
    set_rng_state = staticmethod(lambda state, device="card": card_generator.set_state(state))


def is_registered() -> bool:
    """Whether this process knows the device "card"."""
    return isinstance(getattr(torch, "card", None), CardModule)


def register() -> None:
    """Make torch know the device "card" in this process. Raises RuntimeError where it cannot."""
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup
    except ImportError:
        raise RuntimeError(
            f"practice cards need torch 2.10 or newer, which knows devices made of Python; this is {torch.__version__}"
        ) from None
    setup("card", backend_module=CardModule())
    torch.__future__.set_swap_module_params_on_conversion(True)  # otherwise module.to("card") unties tied weights
    # To swap, torch refuses parameters with weak references, such as those of a traced module. These belong to the
    # Python object, which stays the same, so on the card they are no reason to refuse.
    torch.utils.swap_tensors.__globals__["weakref"] = SimpleNamespace(getweakrefs=lambda tensor: [])
    # The fast path of nn.MultiheadAttention in evaluation packs a padded batch into a nested tensor, which a card
    # lacks.
    torch.backends.mha.set_fastpath_enabled(False)
    torch.nn.Module.load_state_dict = replacement(torch.nn.Module.load_state_dict, _load_state_dict)
    # torch.accelerator calls the device guard in C++, and that of a device made in Python has none of these functions.
    names = "synchronize current_stream set_stream empty_cache memory_allocated memory_reserved max_memory_allocated "
    for name in (names + "max_memory_reserved reset_peak_memory_stats").split():
        setattr(torch.accelerator, name, getattr(torch.card, name))


def _load_state_dict(load: Callable, /, *args, **kwargs):
    """Calls load_state_dict so that it copies into the parameters and does not swap them.

    DDP's reducer holds references to the parameters, and a tensor that is referenced from C++ cannot be swapped.
    """
    torch.__future__.set_swap_module_params_on_conversion(False)
    try:
        return load(*args, **kwargs)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(True)
