"""Turns what a learner's function returned into plain data, compares it, and shows it in sentences.

This file imports neither torch nor numpy, since a value can be a tensor only where torch is loaded. So a page of the
web edition, which has no torch, judges answers with the same functions as a notebook.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

ANY_VALUE = "<ellipsis>"  # what `...` becomes as plain data
TOLERANCE = 1e-5  # relative, within which a value counts as that of a mistake
MAX_SHOWN = 80  # characters of a value that a sentence shows


def is_of_library(value: Any, library: str, name: str) -> bool:
    """Whether the value is of the class `name` of a library; False where the library is not loaded."""
    loaded = sys.modules.get(library)
    return loaded is not None and isinstance(value, getattr(loaded, name))


def is_tensor(value: Any) -> bool:
    """Whether the value is one of torch's tensors."""
    return is_of_library(value, "torch", "Tensor")


def as_plain_data(value: Any) -> Any:
    """The value as numbers, strings, lists, dicts and detached copies of tensors, which can go to another process.

    NumPy's values become Python's, and anything else becomes the name of its type: "<object>".
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    # A longdouble is left out, because its tolist returns a longdouble again.
    is_of_numpy = is_of_library(value, "numpy", "ndarray") or is_of_library(value, "numpy", "generic")
    if is_of_numpy and not is_of_library(value, "numpy", "longdouble"):
        return as_plain_data(value.tolist())
    if is_tensor(value):
        return value.detach().cpu().clone().contiguous()
    if isinstance(value, Mapping):
        return {str(key): as_plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain_data(item) for item in value]
    return f"<{type(value).__name__}>"


def simplified(value: Any) -> Any:
    """The value in the simplest types, also inside dicts and lists, so that it can be compared with a right answer.

    A tensor of one element becomes its number, a tuple a list, and 3.0 becomes 3, since it is no mistake to divide with
    `/` where the result is a whole number.
    """
    if isinstance(value, dict):
        return {key: simplified(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [simplified(item) for item in value]
    if is_tensor(value) and value.numel() == 1:
        value = value.item()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def shortened(value: Any) -> str:
    """The value as a text of at most MAX_SHOWN characters; a tensor by its shape."""
    return shortened_text(f"a tensor of shape {tuple(value.shape)}" if is_tensor(value) else repr(value))


def shortened_text(text: str, start: int = 0) -> str:
    """At most MAX_SHOWN characters of a text, from `start` on."""
    if start == 0 and len(text) <= MAX_SHOWN:
        return text
    end = start + MAX_SHOWN - 4
    return ("… " if start else "") + text[start:end] + (" …" if end < len(text) else "")


# -- comparing -------------------------------------------------------------------------------------------------------
def is_same(a: Any, b: Any) -> bool:
    """Whether two outputs, of lists and dicts of values, agree up to TOLERANCE.

    In `a`, the value `...`, as plain data has it, agrees with anything.
    """
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(is_same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(is_same, a, b))
    return (isinstance(a, str) and a == ANY_VALUE) or _is_equal(a, b)


def _is_equal(a: Any, b: Any) -> bool:
    """Whether two values agree: floats up to TOLERANCE, where NaN equals NaN, and whole numbers exactly.

    A number equals a tensor with this one element. In a tensor of floats, TOLERANCE is relative to the largest value,
    since small ones may be what is left of a sum.
    """
    if is_tensor(a):
        if not (is_tensor(b) and a.shape == b.shape and a.dtype == b.dtype):
            return False
        largest = a[a.isfinite()].abs().max().item() if a.is_floating_point() and a.isfinite().any() else 0.0
        return a.allclose(b, rtol=0, atol=TOLERANCE * largest, equal_nan=a.is_floating_point())
    if type(a) is int and type(b) is int:
        return a == b
    a, b = as_number(a), as_number(b)
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=TOLERANCE) or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and a == b


def as_number(value: Any) -> Any:
    """A number or a tensor of one element as a float, which a later step cannot change in place; anything else as it
    is."""
    value = value.item() if is_tensor(value) and value.numel() == 1 else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
