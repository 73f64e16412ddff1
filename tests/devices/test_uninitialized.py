import pytest
import torch

from helpers.devices import FillUninitialized, fill_value

MAKERS = [
    lambda: torch.empty(3),
    lambda: torch.empty(3, requires_grad=True),
    lambda: torch.empty_like(torch.zeros(3, dtype=torch.float16)),
    lambda: torch.zeros(1, dtype=torch.int64).new_empty(3),
    lambda: torch.empty_strided((3,), (1,), dtype=torch.bool),
]


@pytest.mark.parametrize("make", MAKERS)
def test_memory_that_nobody_wrote_holds_a_strange_number(make):
    with FillUninitialized():
        made = make()
    assert torch.equal(made, torch.full((3,), fill_value(made.dtype), dtype=made.dtype))


def test_the_strange_number_is_finite_also_squared():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert torch.full((1,), fill_value(dtype), dtype=dtype).square().isfinite().all()
