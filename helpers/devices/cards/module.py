"""torch.card: what torch and scripts ask of a device by name, with torch.cuda's names.

All is done when a call returns: a stream waits for nothing, an event knows the time at which it was recorded.
"""

from __future__ import annotations

import contextlib
import time

import torch

from helpers.devices.cards.checks import check_index
from helpers.devices.cards.tensor import memory, numbers
from helpers.units import format_bytes


class Stream:
    """In order with everything else, since everything is."""

    def __init__(self, device=None, priority: int = 0, **ids) -> None:
        self.device, self.priority = torch.device("card", 0), priority

    def wait_event(self, event=None) -> None:
        pass

    wait_stream = synchronize = wait_event

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        pass


class Event(Stream):
    """Recorded at once. Raises RuntimeError for a time between events that were not recorded, as CUDA's does."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.timing, self.seconds = enable_timing, None

    def record(self, stream=None) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds."""
        if not (self.timing and end.timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.seconds is None or end.seconds is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end.seconds - self.seconds) * 1e3

    def wait(self, stream=None) -> None:
        pass


class _Properties:
    name, major, minor, multi_processor_count = "practice card", 9, 0, 1

    @property
    def total_memory(self) -> int:
        return memory.capacity


class CardModule:
    """The module `torch.card`."""

    Stream, Event = Stream, Event
    _initialized = True  # else torch's checkpoint does not keep the generator's state
    memory = memory  # helpers.devices and the meter

    is_initialized = is_available = is_bf16_supported = lambda self, *args, **kwargs: True
    current_device = lambda self: 0  # noqa: E731
    device_count = lambda self: 1  # noqa: E731
    _is_in_bad_fork = lambda self: False  # noqa: E731
    get_device_name = lambda self, device=None: _Properties.name  # noqa: E731
    get_device_capability = lambda self, device=None: (9, 0)  # noqa: E731
    get_device_properties = lambda self, device=None: _Properties()  # noqa: E731

    def set_device(self, device) -> None:
        check_index(torch.device("card", device) if isinstance(device, int) else torch.device(device))

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def synchronize(self, device=None) -> None:
        pass

    empty_cache = reset_accumulated_memory_stats = synchronize

    def current_stream(self, device=None) -> Stream:
        return Stream()

    default_stream = current_stream

    def set_stream(self, stream) -> None:
        pass

    def stream(self, stream):
        return contextlib.nullcontext(stream)

    def device(self, index):
        self.set_device(0 if index is None else index)
        return contextlib.nullcontext()

    # -- memory ----------------------------------------------------------------------------------------------------
    def memory_allocated(self, device=None) -> int:
        return memory.now()

    def max_memory_allocated(self, device=None) -> int:
        return max(memory.peak, memory.now())

    memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated  # nothing is kept for later

    def reset_peak_memory_stats(self, device=None) -> None:
        memory.restart_peak()

    def mem_get_info(self, device=None) -> tuple[int, int]:
        return max(0, memory.capacity - memory.now()), memory.capacity

    def memory_summary(self, device=None, abbreviated: bool = False) -> str:
        held, peak = format_bytes(memory.now(), binary=True), format_bytes(memory.peak, binary=True)
        return f"card 0: {held} allocated, at most {peak}, of {format_bytes(memory.capacity, binary=True)}"

    # -- random numbers --------------------------------------------------------------------------------------------
    def get_rng_state(self, device="card") -> torch.Tensor:
        return numbers.get_state()

    def set_rng_state(self, state: torch.Tensor, device="card") -> None:
        numbers.set_state(state)

    def manual_seed(self, seed: int) -> None:
        numbers.manual_seed(seed)

    manual_seed_all = manual_seed

    def seed(self) -> None:
        numbers.seed()

    def initial_seed(self) -> int:
        return numbers.initial_seed()


def is_registered() -> bool:
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
    for name in ("synchronize", "current_stream", "set_stream", "empty_cache", "memory_allocated", "memory_reserved"):
        setattr(torch.accelerator, name, getattr(torch.card, name))  # the Python guard of a device has none of these
    for name in ("max_memory_allocated", "max_memory_reserved", "reset_peak_memory_stats"):
        setattr(torch.accelerator, name, getattr(torch.card, name))
