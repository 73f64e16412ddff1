"""Packs functions, arguments and results for the way between the notebook and the ranks, with cloudpickle.

cloudpickle also pickles functions that are defined in a notebook. A call that cannot be sent, or is too large, is
refused with a sentence that names the variable or argument to blame. A "practice card" is a simulated GPU
(helpers/devices/cards).
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle

MAX_CALL_BYTES = 256_000_000  # of one call to one rank; beyond, data should be made on the ranks


class Pickler(cloudpickle.CloudPickler):
    """cloudpickle, but every imported module travels by its name: torch's config modules would not travel at all.

    A tensor on a practice card travels as a tensor on the CPU.
    """

    def reducer_override(self, value: Any) -> Any:
        """What pickle calls for each object: how to make it again, as (function, arguments)."""
        if isinstance(value, types.ModuleType) and sys.modules.get(value.__name__) is value:
            return importlib.import_module, (value.__name__,)
        devices = sys.modules.get("helpers.devices")  # it imports torch, which the notebook need not load
        # How to pickle a card's tensor as a CPU tensor, because the reader may have no card; None for other values.
        reduced = devices and devices.reduced_to_cpu(value)
        if reduced is not None:
            return reduced
        return super().reducer_override(value)


def pack(value: Any) -> bytes:
    """The value as bytes."""
    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def pack_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, num_ranks: int) -> bytes:
    """A call as bytes, the same for each rank. num_ranks: for the error message.

    Raises ValueError, with the name of what is to blame, if something cannot be sent or weighs over 256 MB.
    """
    if not callable(fn):
        raise ValueError(
            f"run needs a function, but got {type(fn).__name__}: write ranks.run(train), without calling it."
        )
    try:
        blob = pack((fn, tuple(args), dict(kwargs)))
    except Exception as error:
        raise ValueError(_cannot_send(fn, args, kwargs, error)) from None
    if len(blob) > MAX_CALL_BYTES:
        raise ValueError(_too_heavy(fn, args, kwargs, len(blob), num_ranks))
    return blob


def pack_result(value: Any) -> bytes:
    """A rank's result as bytes. Raises TypeError with a sentence if it cannot be sent back."""
    try:
        return pack(value)
    except Exception as error:
        raise TypeError(
            f"the result, a {type(value).__name__}, cannot be sent back to the notebook ({error}); "
            "return plain data: numbers, tensors, lists, a state_dict."
        ) from None


def unpack(blob: bytes) -> Any:
    """What `pack` or `pack_call` packed. A call is a tuple of function, arguments and keyword arguments."""
    return pickle.loads(blob)


def sent_values(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every named value that travels with a call: arguments, closed-over variables, and globals the function reads."""
    values = {f"argument {i}": value for i, value in enumerate(args)}
    values |= {f"argument {name}": value for name, value in kwargs.items()}
    code = getattr(fn, "__code__", None)
    if code is not None:
        cells = fn.__closure__ or ()
        values |= {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)}
        # co_names: the globals and attributes that the function's code names
        values |= {name: fn.__globals__[name] for name in code.co_names if name in fn.__globals__}
    return values


def _size(value: Any) -> int | None:
    """Bytes of the packed value, None if it cannot be packed."""
    try:
        return len(pack(value))
    except Exception:
        return None


def _cannot_send(fn, args, kwargs, error: Exception) -> str:
    """The message for a call that cannot be packed. It names every value that cannot be packed alone."""
    name = getattr(fn, "__name__", "the function")
    values = sent_values(fn, args, kwargs).items()
    blamed = [f"`{key}` ({type(value).__name__})" for key, value in values if _size(value) is None]
    what = " and ".join(blamed) if blamed else f"something it refers to ({error})"
    return f"{name} cannot be sent to the ranks because of {what}: make it inside {name}, on each rank."


def _too_heavy(fn, args, kwargs, num_bytes: int, num_ranks: int) -> str:
    """The message for a call that is too large. It names the largest value that travels with it."""
    name = getattr(fn, "__name__", "the function")
    sizes = {key: _size(value) or 0 for key, value in sent_values(fn, args, kwargs).items()}
    heaviest = max(sizes, key=sizes.get, default=None)
    culprit = f"`{heaviest}` alone is {sizes[heaviest] / 1e9:.2f} GB. " if heaviest else ""
    return (
        f"{name} would carry {num_bytes / 1e9:.2f} GB to each of {num_ranks} ranks (the limit is "
        f"{MAX_CALL_BYTES / 1e9:.2f} GB). {culprit}Make it inside {name}, on each rank, "
        "or pass a path or a seed instead."
    )
