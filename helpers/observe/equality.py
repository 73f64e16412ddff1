"""Compares the tensors of ranks with those of one process, and says in one line whether they are equal.

A difference has to be within the tolerance of the dtype: in float64 the norm of the difference is at most 1e-10 of the
tensor's norm; in float32 the largest difference is at most 1e-5 of the largest value; in 16 bits it is at most 8
rounding steps (eps) of the largest value. A gradient that is zero in theory, such as that of attention's key bias,
holds only rounding noise: give it an absolute tolerance by name. Chapters, tests and benchmarks prove strategies with
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import torch
from torch import Tensor

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
Tensors = Mapping[str, Tensor]


def assert_equal(
    reference: Tensors,
    actual: Tensors | Sequence[Tensors],
    *,
    rtol: float | None = None,
    atol: Mapping[str, float] | None = None,
) -> str:
    """Compare tensors with a reference by name.

    Returns a line such as "equal: 148 tensors x 4 ranks, largest difference 3.0e-8". The difference is the relative
    one, except where an absolute tolerance was given. reference: name -> tensor. actual: the same for one process, or a
    list with one per rank. rtol: replaces the tolerance of every dtype. atol: absolute tolerances by name, where *
    matches anything: {"*.key.bias": 1e-6}. Raises AssertionError with rank, tensor, index and both values at the
    largest difference, also for a missing name or another shape or dtype; ValueError if there is nothing to compare.
    """
    by_rank = [actual] if isinstance(actual, Mapping) else list(actual)
    if not reference or not by_rank:
        raise ValueError(
            f"assert_equal got {len(reference)} reference tensors and {len(by_rank)} ranks, but it needs at least one "
            "of each: pass dict(model.named_parameters()) of one process, and the list that ranks.run returned"
        )
    problems = []
    largest = 0.0
    for rank, tensors in enumerate(by_rank):
        where = f"rank {rank} of {len(by_rank)}: " if len(by_rank) > 1 else ""
        _check_names(reference, tensors, where)
        for name, expected in reference.items():
            result = _compare(where + name, expected, tensors[name], rtol, _absolute(name, atol))
            largest = max(largest, result.difference)
            problems += [result.problem] if result.problem else []
    if problems:
        more = f"\n(tensors that differ as well: {len(problems) - 1})" if len(problems) > 1 else ""
        raise AssertionError(problems[0] + more)
    num_ranks = f" x {len(by_rank)} ranks" if len(by_rank) > 1 else ""
    return f"equal: {len(reference)} tensors{num_ranks}, largest difference {_short(largest)}"


def state_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Copies of weights, buffers and gradients of `model`, by name, on the CPU, for `assert_equal` to compare.

    A weight keeps its name, without the "module." of a wrapper, and its gradient is "<name>.grad". A parameter without
    a gradient has no ".grad" entry. A tied tensor appears under its first name.
    """
    state = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        name = name.removeprefix("module.")
        state[name] = tensor.detach().cpu().clone()
        if tensor.grad is not None:
            state[f"{name}.grad"] = tensor.grad.detach().cpu().clone()
    return state


@dataclass(frozen=True)
class _Comparison:
    """How far two tensors are apart, and a sentence where that is too far, or ""."""

    difference: float
    problem: str = ""


def _check_names(reference: Tensors, tensors: Tensors, where: str) -> None:
    """AssertionError where the two have other names. where: which rank, for the message."""
    missing, extra = sorted(reference.keys() - tensors.keys()), sorted(tensors.keys() - reference.keys())
    if missing or extra:
        raise AssertionError(f"{where}missing tensors {missing}, unexpected tensors {extra}")


def _absolute(name: str, atol: Mapping[str, float] | None) -> float | None:
    """The absolute tolerance of a tensor, by the first pattern that its name matches; None if there is none."""
    return next((value for pattern, value in (atol or {}).items() if fnmatch(name, pattern)), None)


def _compare(label: str, expected: Tensor, actual: Tensor, rtol: float | None, atol: float | None) -> _Comparison:
    """Compare one tensor. rtol, atol: None for the tolerance of the dtype."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        shapes = [f"{tuple(t.shape)} {t.dtype}" for t in (actual, expected)]
        return _Comparison(float("inf"), f"{label} is {shapes[0]}, expected {shapes[1]}")
    expected, actual = expected.detach().cpu(), actual.detach().cpu()
    if expected.numel() == 0 or torch.equal(expected, actual):
        return _Comparison(0.0)
    gap, word = (actual.double() - expected.double()).abs(), "relative difference"
    if atol is not None:
        difference, limit, word = gap.max().item(), atol, "difference"
    else:
        measured = gap.norm() if expected.dtype == torch.float64 else gap.max()
        size = _size(expected)
        difference = measured.item() / size if size else float("inf")
        limit = rtol if rtol is not None else _tolerance(expected.dtype)
    if difference <= limit:
        return _Comparison(difference)
    compared = f"{word} {_short(difference)}, allowed {_short(limit)}"
    return _Comparison(difference, _describe(label, expected, actual, gap, compared))


def _size(expected: Tensor) -> float:
    """What a difference is divided by: the norm in float64, else the largest absolute value."""
    values = expected.double()
    return (values.norm() if expected.dtype == torch.float64 else values.abs().max()).item()


def _tolerance(dtype: torch.dtype) -> float:
    """The relative tolerance of a dtype; 0 for integers."""
    if not dtype.is_floating_point:
        return 0.0
    return TOLERANCES.get(dtype, 8 * torch.finfo(dtype).eps)


def _describe(label: str, expected: Tensor, actual: Tensor, gap: Tensor, compared: str) -> str:
    """The sentence about a tensor that differs: where it differs most, and both values there.

    compared: the difference of the tensors, and what is allowed. The factor follows if the whole tensor is a multiple
    of the expected one.
    """
    worst = int(gap.nan_to_num(nan=float("inf")).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), expected.shape))
    values = f"{actual.flatten()[worst].item():.6g}, expected {expected.flatten()[worst].item():.6g}"
    text = f"{label} differs, most at {index}: {values} ({compared})"
    return text + _ratio_hint(expected.double().flatten(), actual.double().flatten())


def _ratio_hint(expected: Tensor, actual: Tensor) -> str:
    """The factor, if the whole tensor is a multiple: 3.00 times on 3 ranks is a sum where a mean is meant."""
    if not expected.norm() > 0:
        return ""
    factor = (actual @ expected / (expected @ expected)).item()  # the best factor, by least squares
    if not (actual - factor * expected).norm() <= 1e-4 * actual.norm():  # `not … <=` is true for NaN as well
        return ""
    # It is a multiple up to rounding errors. A factor that is printed as 1.00 would explain nothing.
    return f"; the whole tensor is {factor:.2f} times the expected one" if abs(factor - 1) > 0.005 else ""


def _short(number: float) -> str:
    """The number with two digits, as "3.0e-8" and not as "3e-08"."""
    if number == 0:
        return "0"
    mantissa, _, exponent = f"{number:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
