"""Compares tensors with the right ones, and says in words how the two differ.

A task's `judge` calls the `expect_…` functions, which return or yield Judgements as those of comparisons.py do:

    yield expect_tensor("the gradient of bias", mean, got, rank=rank, mistakes={"sum_for_mean": mean * world.size})

`describe_tensor` finds the sentence about a wrong tensor: its shape, the factor by which it is off, or the index and
the digit in which it differs. `Words` is a text in English and Chinese with places to fill in, and `words["at"]` is one
of values.yaml. `what` is how a sentence names the value that is compared, such as "the gradient of bias".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.devices import fill_value
from helpers.grading.kit.comparisons import simple_factor
from helpers.grading.plain_data import shortened
from helpers.grading.rounding import ComparedTensors
from helpers.grading.task import Judgement
from helpers.learner.words import Words, book
from helpers.observe.equality import TOLERANCES

words = book("values")
NamedTensors = Mapping[str, Tensor]
NARROW_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # those that a result may have been rounded to
FEW_ROUNDINGS = 4 * torch.finfo(torch.float32).eps  # relative; what a few operations in float32 change
MIN_EQUAL_DIGITS = 3  # two numbers must agree in this many digits before the sentence says so
MIN_FACTOR_GAP = 0.005  # a factor that differs less from 1 would be read as 1.00
FACTOR_TOLERANCE = 1e-6  # relative; a result that is this near to a multiple of the right one counts as the multiple
FILL_FACTOR = 1e3  # a sum or a mean of memory that was never written to is at most this many times its value
MAX_NAMED_LINES = 3  # rows or columns of a matrix that a sentence names


# -- comparisons -----------------------------------------------------------------------------------------------------
def is_close(expected: Tensor, got: Any) -> bool:
    """Whether `got` equals `expected` as the course means it.

    float64 must agree to 1e-10 of the norm, float32 to 1e-5 of the largest value, other floating dtypes to eight
    rounding steps of the largest value, and whole numbers exactly. Where terms cancel, a right answer may differ by
    more; the grader then looks at the Judgement once more (`helpers.grading.rounding.forgive_rounding`).
    """
    if not isinstance(got, Tensor) or got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if not expected.dtype.is_floating_point or expected.numel() == 0:
        return torch.equal(expected, got)
    difference, size = (got - expected).double(), expected.double()
    if expected.dtype == torch.float64:
        return bool(difference.norm() <= TOLERANCES[torch.float64] * size.norm())
    tolerance = TOLERANCES.get(expected.dtype, 8 * torch.finfo(expected.dtype).eps)
    return bool(difference.abs().max() <= tolerance * size.abs().max())


def expect_tensor(
    what: Words | str,
    expected: Tensor,
    got: Any,
    *,
    rank: int | None = None,
    mistakes: Mapping[str, Any] | None = None,
    before: Tensor | None = None,
) -> Judgement:
    """Expects a tensor with the shape, dtype and values of `expected`.

    what: the name of the value, for the sentence. mistakes: maps the key of a hint to the value that the mistake gives,
    or to a list of such values. before: the value before the call, if it was to be changed in place; if `got` still
    equals it, the sentence says that it is unchanged.
    """
    compared = ComparedTensors(expected, got)  # so that `forgive_rounding` can compare them once more
    if is_close(expected, got):
        return Judgement(ok=True, message=Words.of(what), rank=rank, compared=compared)
    known = tuple(key for key, wrong in (mistakes or {}).items() if _is_mistake(wrong, expected, got))
    message = describe_tensor(Words.of(what), expected, got, before)
    return Judgement(ok=False, message=message, rank=rank, mistakes=known, compared=compared)


def _is_mistake(wrong: Any, expected: Tensor, got: Any) -> bool:
    """Whether `got` is what this mistake gives. A mistake that gives the right value in this case is not recognised."""
    if isinstance(wrong, Sequence):
        return any(_is_mistake(one, expected, got) for one in wrong)
    if wrong is None:
        return got is None
    return is_close(wrong, got) and not is_close(expected, wrong)


def expect_number(
    what: Words | str,
    expected: float,
    got: float,
    *,
    rank: int | None = None,
    mistakes: Mapping[str, float] | None = None,
) -> Judgement:
    """Expects a number as close to `expected` as an element of a float64 tensor has to be."""
    wrong = {key: _float64(value) for key, value in (mistakes or {}).items()}
    return expect_tensor(what, _float64(expected), _float64(got), rank=rank, mistakes=wrong)


def _float64(value: float) -> Tensor:
    """The number as a float64 tensor of one element."""
    return torch.tensor(value, dtype=torch.float64)


def expect_tensors(
    what: Words,
    expected: Mapping[str, Tensor],
    got: Any,
    *,
    rank: int | None = None,
    mistakes: Mapping[str, NamedTensors | Sequence[NamedTensors]] | None = None,
    before: NamedTensors | None = None,
) -> Iterator[Judgement]:
    """Expects a dict of tensors by name, with one Judgement for each name.

    what: holds braces for the name. mistakes: maps the key of a hint to a dict of the wrong tensors, or to a list of
    such dicts. before: the values before the call, by name.
    """
    tensors, earlier = got if isinstance(got, Mapping) else {}, before or {}
    wrong_dicts = {key: [wrong] if isinstance(wrong, Mapping) else wrong for key, wrong in (mistakes or {}).items()}
    for name, tensor in expected.items():
        # What each mistake gives for the tensor of this name.
        wrong = {key: [values[name] for values in dicts] for key, dicts in wrong_dicts.items()}
        options = {"rank": rank, "mistakes": wrong, "before": earlier.get(name)}
        yield expect_tensor(what.format(name), tensor, tensors.get(name), **options)


# -- sentences about a wrong value -----------------------------------------------------------------------------------
def describe_tensor(what: Words, expected: Tensor, got: Any, before: Tensor | None = None) -> Words:
    """A sentence about what is wrong with `got`: "the mean at [2] is 0.333252, expected 0.333333: 3 digits agree …".

    before: the value before the call, if it was to be changed in place.
    """
    # In the texts of values.yaml {got} is the learner's value and {due} the right one.
    if not isinstance(got, Tensor):
        shown = words["a_list"].format(shortened(got)) if isinstance(got, list) else shortened(got)
        return words["no_tensor"].format(what=what, got=shown, due=tuple(expected.shape))
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return _describe_shape_and_dtype(what, expected, got)
    difference = (got.double() - expected.double()).abs().nan_to_num(nan=math.inf)
    worst = int(difference.masked_fill(got == expected, 0).argmax())  # an infinity that was expected is no difference
    index = [int(i) for i in torch.unravel_index(torch.tensor(worst), expected.shape)]
    values = got.flatten()[worst].item(), expected.flatten()[worst].item()
    at = words["at"].format(index) if got.numel() > 1 else Words.of("")
    parts = {"what": what, "at": at} | _shown_numbers(*values)
    if _was_never_written(*values, got.dtype):
        return words["never_written"].format(**parts)
    if num_bad := int((~got.isfinite() & expected.isfinite()).sum()):
        return words["not_finite" if got.numel() > 1 else "value"].format(bad=num_bad, all=got.numel(), **parts)
    if before is not None and before.dtype == got.dtype and torch.equal(before, got):
        return words["unchanged"].format(**parts)
    return _describe_values(parts, expected, got, num_equal_digits(*values))


def _describe_shape_and_dtype(what: Words, expected: Tensor, got: Tensor) -> Words:
    """The sentence if the shape, the dtype or both differ; it is called "shape", "dtype" or "shape_and_dtype"."""
    pairs = {  # what differs -> the learner's and the right one, as texts
        "shape": [str(tuple(one.shape)) for one in (got, expected)],
        "dtype": [str(one.dtype).removeprefix("torch.") for one in (got, expected)],
    }
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    shown, due = (" ".join(texts) for texts in zip(*differing.values(), strict=True))
    return words["_and_".join(differing)].format(what=what, got=shown, due=due)


def _describe_values(parts: dict[str, Any], expected: Tensor, got: Tensor, num_digits: int) -> Words:
    """The sentence where shape and dtype are right and every number is finite.

    parts: what every sentence is filled with: "what", "at" (the index of the worst element), and that element in both
    tensors, "got" and "due". num_digits: how many digits of the worst element agree.
    """
    if got.numel() > 1 and not got.any():
        return words["zeros"].format(**parts)
    factor = factor_of(expected, got)
    if factor is not None:
        return words["sign" if factor == -1 else "times"].format(factor=_factor_text(factor), **parts)
    narrow = narrower_dtype(expected, got) if num_digits else ""
    if narrow or num_digits >= MIN_EQUAL_DIGITS:
        return words["rounded" if narrow else "digits"].format(agree=num_digits, dtype=narrow, **parts)
    # The same elements in another order are equal once both are sorted.
    in_order = [one.double().flatten().sort().values for one in (got, expected)]
    is_permuted = got.numel() > 1 and torch.allclose(*in_order, rtol=1e-10, atol=0)
    if is_permuted:
        return words["order"].format(**parts)
    number = simple_factor(expected.item(), got.item()) if got.numel() == 1 else ""
    sentence = words["value_times" if number else "value"].format(number=number, **parts)
    return sentence + _where_they_differ(expected, got)


def _was_never_written(got: float, expected: float, dtype: torch.dtype) -> bool:
    """Whether a number seems to come from memory that `torch.empty` gave and nobody wrote to.

    On a rank such memory holds a large number (FillUninitialized), and a sum or a mean of it is large as well. In the
    narrower dtypes it would not stand out.
    """
    if dtype not in (torch.float32, torch.float64, torch.int64):
        return False
    fill = fill_value(dtype)
    return fill / FILL_FACTOR <= abs(got) <= fill * FILL_FACTOR and abs(expected) < fill / FILL_FACTOR**2


def _where_they_differ(expected: Tensor, got: Tensor) -> Words:
    """How many elements differ, and in which rows or columns if those are few; nothing where all elements differ.

    For example "; 8 of its 24 elements differ, all of them in row 3".
    """
    right, got = expected.double(), got.double()
    differs = (got - right).abs() > TOLERANCES[torch.float32] * right.abs().max()
    num_bad = int(differs.sum())
    if num_bad in (0, got.numel()):
        return Words.of("")
    text = words["differ"].format(num_bad, got.numel())
    for name, other in {"rows": 1, "columns": 0}.items() if got.dim() == 2 else ():
        lines = differs.any(other).nonzero().flatten().tolist()
        if len(lines) <= MAX_NAMED_LINES and len(lines) < got.shape[1 - other]:
            return text + words[name].format(lines, count=len(lines))
    return text


def factor_of(expected: Tensor, got: Tensor) -> float | None:
    """The factor between the two tensors, if `got` is a visible multiple of `expected`; None if it is not."""
    a, b = expected.double().flatten(), got.double().flatten()
    if a.numel() < 2 or not a.norm() > 0:  # one number is a multiple of any other
        return None
    factor = (a @ b / (a @ a)).item()  # the multiple of a that is nearest to b
    is_multiple = (b - factor * a).norm() <= FACTOR_TOLERANCE * a.norm()  # false where an element is infinite
    is_zero = abs(factor) < 1e-9
    if not is_multiple or is_zero or abs(factor - 1) < MIN_FACTOR_GAP:
        return None
    return -1 if abs(factor + 1) < FACTOR_TOLERANCE else factor


def _factor_text(factor: float) -> str:
    """The factor with two decimals, or with two digits if it is small."""
    return f"{factor:.2f}" if abs(factor) >= 0.1 else f"{factor:.2g}"


def num_equal_digits(got: float, expected: float) -> int:
    """In how many digits two numbers agree: 3 for 1.00123 and 1.00099.

    It is 0 where the signs differ, where a number is 0 or not finite, and where the two are equal, since then there is
    nothing to say about digits.
    """
    if got == expected or not got * expected > 0 or not math.isfinite(got):
        return 0
    relative_difference = abs(got - expected) / abs(expected)
    return max(0, math.floor(-math.log10(relative_difference)))


def _shown_numbers(got: float, expected: float) -> dict[str, str]:
    """Both numbers as texts, with enough digits to tell them apart, and at least six."""
    digits = max(6, num_equal_digits(got, expected) + 3)
    return {"got": _number_text(got, digits), "due": _number_text(expected, digits)}


def _number_text(value: float, digits: int) -> str:
    """The number with `digits` digits; an integer or bool as it is."""
    return f"{value + 0:.{digits}g}" if isinstance(value, float) else str(value)  # + 0 turns -0.0 into 0.0


def narrower_dtype(expected: Tensor, got: Tensor) -> str:
    """The name of a narrower dtype in which `got` seems to have been computed; "" for none.

    A 16-bit dtype is named if rounding `expected` to it gives exactly `got`. float32 is named also if every element of
    `got` fits in it and the difference is a few roundings.
    """
    if not got.dtype.is_floating_point or torch.equal(got, got.round()):
        return ""  # whole numbers fit in every dtype
    for dtype in NARROW_DTYPES:
        is_narrower = torch.finfo(dtype).eps > torch.finfo(got.dtype).eps
        if is_narrower and torch.equal(got, _through(dtype, got)):  # every element of `got` fits in the dtype
            is_near = bool(((got - expected).abs() <= FEW_ROUNDINGS * expected.abs().max()).all())
            rounded = _through(dtype, expected)
            loses_digits = not torch.equal(rounded, expected)
            if torch.equal(got, rounded) or (dtype == torch.float32 and is_near and loses_digits):
                return str(dtype).removeprefix("torch.")
    return ""


def _through(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """The tensor rounded to a dtype and converted back."""
    return tensor.to(dtype).to(tensor.dtype)
