"""What a wrong value is told to a person as: its shape, its factor, or the place and the digit in which it differs.

tell_tensor(Words.of("the mean"), expected, got)     the mean at [2] is 0.333252, expected 0.333333: 3 digits agree …
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from helpers.learner.words import Words, book

words = book("values")
NARROW = (torch.float32, torch.bfloat16, torch.float16)  # what rounding left differs least in the first
FEW = 4 * torch.finfo(torch.float32).eps  # a few roundings
CLOSE = 3  # digits in which two numbers agree before it is worth saying so
VISIBLE = 0.005  # a factor that differs less from 1 reads as 1.00


def describe_tensor(what: Words, expected: Tensor, got: Any, before: Tensor | None = None) -> Words:
    """What is wrong with `got`. before: what stood there before the call, if it was to be changed in place."""
    if not isinstance(got, Tensor):
        return words["no_tensor"].format(what=what, got=shortened(got), due=tuple(expected.shape))
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return _tell_kind(what, expected, got)
    gap = (got.double() - expected.double()).abs().nan_to_num(nan=math.inf)
    worst = int(gap.masked_fill(got == expected, 0).argmax())  # inf where inf is due is no gap
    place = [int(i) for i in torch.unravel_index(torch.tensor(worst), expected.shape)]
    values = got.flatten()[worst].item(), expected.flatten()[worst].item()
    at = words["at"].format(place) if got.numel() > 1 else Words.of("")
    told = {"what": what, "at": at} | _shown_numbers(*values)
    if bad := int((~got.isfinite() & expected.isfinite()).sum()):
        return words["not_finite" if got.numel() > 1 else "value"].format(bad=bad, all=got.numel(), **told)
    if before is not None and before.dtype == got.dtype and torch.equal(before, got):
        return words["unchanged"].format(**told)
    return _tell_values(told, expected, got, num_equal_digits(*values))


def _tell_kind(what: Words, expected: Tensor, got: Tensor) -> Words:
    kinds = {}
    if got.shape != expected.shape:
        kinds["shape"] = [str(tuple(one.shape)) for one in (got, expected)]
    if got.dtype != expected.dtype:
        kinds["dtype"] = [str(one.dtype).removeprefix("torch.") for one in (got, expected)]
    given, due = (" ".join(pair) for pair in zip(*kinds.values(), strict=True))
    return words["_and_".join(kinds)].format(what=what, got=given, due=due)


def _tell_values(told: dict[str, Any], expected: Tensor, got: Tensor, agree: int) -> Words:
    """Shape and dtype are right and every number is finite."""
    if got.numel() > 1 and not got.any():
        return words["zeros"].format(**told)
    factor = factor_of(expected, got)
    if factor is not None:
        return words["sign" if factor == -1 else "times"].format(factor=_factor(factor), **told)
    narrow = narrower_dtype(expected, got) if agree else ""
    if narrow or agree >= CLOSE:
        return words["rounded" if narrow else "digits"].format(agree=agree, dtype=narrow, **told)
    ordered = [one.double().flatten().sort().values for one in (got, expected)]
    is_moved = got.numel() > 1 and torch.allclose(*ordered, rtol=1e-10, atol=0)
    return words["order" if is_moved else "value"].format(**told)


def factor_of(expected: Tensor, got: Tensor) -> float | None:
    """By what the whole tensor is too large, if it is a multiple of the expected one and the factor can be seen."""
    a, b = expected.double().flatten(), got.double().flatten()
    if a.numel() < 2 or not a.norm() > 0:
        return None
    factor = (a @ b / (a @ a)).item()
    fits = (b - factor * a).norm() <= 1e-6 * a.norm()  # not where something is infinite
    if not fits or abs(factor) < 1e-9 or abs(factor - 1) < VISIBLE:
        return None
    return -1 if abs(factor + 1) < 1e-6 else factor


def _factor(factor: float) -> str:
    return f"{factor:.2f}" if abs(factor) >= 0.1 else f"{factor:.2g}"


def num_equal_digits(got: float, expected: float) -> int:
    """In how many digits two numbers agree: 3 for 1.00123 and 1.00099, none where the sign differs."""
    if got == expected or not got * expected > 0 or not math.isfinite(got):
        return 0
    return max(0, math.floor(-math.log10(abs(got - expected) / abs(expected))))


def _shown_numbers(got: float, expected: float) -> dict[str, str]:
    """Both with as many digits as tell them apart, six at least."""
    digits = max(6, num_equal_digits(got, expected) + 3)
    return {"got": _number_text(got, digits), "due": _number_text(expected, digits)}


def _number_text(value: float, digits: int) -> str:
    return f"{value + 0:.{digits}g}" if isinstance(value, float) else str(value)


def narrower_dtype(expected: Tensor, got: Tensor) -> str:
    """The narrower dtype that explains what came; "" for none. Of 16 bits: rounding gives exactly that. Of float32:
    every number fits in it, and a few roundings are the difference."""
    if not got.dtype.is_floating_point or torch.equal(got, got.round()):
        return ""  # whole numbers fit in every dtype
    for dtype in NARROW:
        if torch.finfo(dtype).eps > torch.finfo(got.dtype).eps and torch.equal(got, _through(dtype, got)):
            is_near = bool(((got - expected).abs() <= FEW * expected.abs().max()).all())
            rounded = _through(dtype, expected)
            is_lost = not torch.equal(rounded, expected)
            if torch.equal(got, rounded) or (dtype == torch.float32 and is_near and is_lost):
                return str(dtype).removeprefix("torch.")
    return ""


def _through(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype).to(tensor.dtype)


def describe_difference(what: Words, expected: Any, got: Any) -> Words:
    """The same of numbers, texts and lists of them: of lists, the first place at which they part."""
    if not (isinstance(expected, list) and isinstance(got, list)):
        return Words(en="{} is {}, expected {}", zh="{}是 {}，应为 {}").format(
            what, shortened(got), shortened(expected)
        )
    place = next((i for i, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        says = Words(en="{}: there are {}, expected {}", zh="{}：共 {} 个，应为 {} 个")
        return says.format(what, len(got), len(expected))
    says = Words(en="{}: number {} is {}, expected {}", zh="{}：第 {} 个是 {}，应为 {}")
    return says.format(what, place + 1, shortened(got[place]), shortened(expected[place]))


def shortened(value: Any, room: int = 80) -> str:
    text = repr(value) if not isinstance(value, Tensor) else f"a tensor of shape {tuple(value.shape)}"
    return text if len(text) <= room else text[: room - 2] + " …"
