"""What differs by rounding alone is right, however small the sum beside its terms; what is wrong stays wrong."""

from __future__ import annotations

import pytest
import torch

from helpers.grading.cases import Case, CaseGenerator
from helpers.grading.common_checks import forgive_rounding
from helpers.grading.kit.comparisons import expect_tensor


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
    for wrong in (
        whole * 2,
        whole + terms(0, "float32", scale)[0] / 1000,
        whole.double(),
        whole.new_tensor([[float("nan")]]),
    ):
        assert not found(wrong, scale=scale)


def test_nothing_is_forgiven_where_nothing_cancels():
    given = CaseGenerator.of(3, Case(dtypes="float32")).tensor(5).abs() + 1

    def again(nudge: int = 0):
        return [
            expect_tensor("the sum", CaseGenerator.of(3, Case(dtypes="float32"), nudge=nudge).tensor(5).abs() + 1, got)
        ]

    got = given * (1 + 2e-6)
    assert forgive_rounding(again(), again)[0].ok
    got = given * (1 + 2e-5)
    assert not forgive_rounding(again(), again)[0].ok


def test_a_nudge_moves_every_number_by_a_step_or_so():
    plain, nudged = (CaseGenerator.of(3, Case(dtypes="float32"), nudge=nudge).tensor(1000) for nudge in (0, 1))
    steps = (nudged / plain - 1).abs() / torch.finfo(torch.float32).eps
    assert 0 < steps.mean() and steps.max() <= 3
    assert torch.equal(
        CaseGenerator.of(3, Case(dtypes="int64"), nudge=1).tensor(9),
        CaseGenerator.of(3, Case(dtypes="int64")).tensor(9),
    )
