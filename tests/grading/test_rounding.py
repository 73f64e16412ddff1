"""Differences that are only rounding."""

from __future__ import annotations

import pytest
import torch

from helpers.grading.kit.tensor_comparisons import expect_tensor
from helpers.grading.rounding import forgive_rounding
from helpers.grading.task import Case
from helpers.grading.tensor_cases import CaseGenerator


def terms(nudge: int, dtype: str, scale: float) -> list[torch.Tensor]:
    """Five numbers and what nearly cancels them."""
    drawn = CaseGenerator.of(3, Case(dtypes=dtype), nudge=nudge).tensor(5, 1) * scale
    rest = {"float32": 1e-5, "bfloat16": 0.1}[dtype] * scale * torch.ones(1, 1, dtype=drawn.dtype)
    return [*drawn.split(1), *(-CaseGenerator.of(3, Case(dtypes=dtype)).tensor(5, 1) * scale).split(1), rest]


def found(got: torch.Tensor, dtype: str = "float32", scale: float = 1.0) -> bool:
    def again(nudge: int = 0):
        return [expect_tensor("the sum", sum(terms(nudge, dtype, scale)), got)]

    (finding,) = forgive_rounding(again(), again)
    return finding.ok


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_order_of_adding_is_right_also_where_terms_cancel(dtype, scale):
    for order in (torch.randperm(11, generator=torch.Generator().manual_seed(one)) for one in range(20)):
        assert found(sum(terms(0, dtype, scale)[place] for place in order), dtype, scale)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6])
def test_a_wrong_sum_is_wrong_at_every_scale(scale):
    whole = sum(terms(0, "float32", scale))
    near = whole + terms(0, "float32", scale)[0] / 1000
    for wrong in (whole * 2, near, whole.double(), whole.new_tensor([[float("nan")]])):
        assert not found(wrong, scale=scale)


def test_nothing_is_forgiven_where_nothing_cancels():
    def due(nudge: int = 0) -> torch.Tensor:
        return CaseGenerator.of(3, Case(dtypes="float32"), nudge=nudge).tensor(5).abs() + 1

    def is_forgiven(error: float) -> bool:
        def again(nudge: int = 0):
            return [expect_tensor("the sum", due(nudge), due() * (1 + error))]

        return forgive_rounding(again(), again)[0].ok

    assert is_forgiven(2e-6) and not is_forgiven(2e-5)


def test_a_nudge_moves_every_number_by_a_step_or_so():
    plain, nudged = (CaseGenerator.of(3, Case(dtypes="float32"), nudge=nudge).tensor(1000) for nudge in (0, 1))
    steps = (nudged / plain - 1).abs() / torch.finfo(torch.float32).eps
    assert 0 < steps.mean() and steps.max() <= 3
    whole = [CaseGenerator.of(3, Case(dtypes="int64"), nudge=nudge).tensor(9) for nudge in (0, 1)]
    assert torch.equal(*whole)
