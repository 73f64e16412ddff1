"""A flipped bit of a product reaches all ranks, so only the checksum of the product finds it."""

import pytest
import torch

from helpers.chapters.silent_corruption import AT_STEP, alarms, flip_bit, product_error, train_with_flip

FOUND = {  # (where, bit) -> which alarms go off in the step of the flip
    ("product", 30): {"loss is not finite", "gradient norm jumps", "checksum of the product"},
    ("product", 25): {"checksum of the product"},
    ("product", 16): {"checksum of the product"},
    ("product", 4): set(),
    ("weight", 16): {"weights differ between ranks"},
}


@pytest.mark.parametrize(("case", "expected"), FOUND.items())
def test_who_notices_a_flipped_bit_and_when(ranks, case, expected):
    by_rank = ranks.run(train_with_flip, *case)
    found = alarms(by_rank[0])
    assert {name for name, steps in found.items() if steps == 0} == expected, found
    if case[0] == "product":
        assert all(step.is_same for steps in by_rank for step in steps)


def test_without_a_flip_no_alarm_goes_off(ranks):
    assert set(alarms(ranks.run(train_with_flip)[0]).values()) == {None}


@pytest.mark.parametrize("bit", range(32))
def test_one_bit_and_no_other_is_flipped(bit):
    tensor = torch.full((3,), 0.75)
    flip_bit(tensor, 1, bit)
    changed = tensor.view(torch.int32) ^ torch.full((3,), 0.75).view(torch.int32)
    assert [one & 0xFFFFFFFF for one in changed.tolist()] == [0, 1 << bit, 0]


def test_the_checksum_of_a_right_product_differs_only_by_rounding():
    x, weight = torch.randn(64, 32), torch.randn(16, 32)
    product = x @ weight.T
    assert product_error(x, weight, product) < 1e-6
    product[5, 7] += 0.1
    assert product_error(x, weight, product) > 1e-4
    product[5, 7] = torch.nan
    assert product_error(x, weight, product) == float("inf")


def test_the_flip_is_in_the_middle_of_the_run(ranks):
    calm, flipped = ranks.run(train_with_flip)[0], ranks.run(train_with_flip, "product", 25)[0]
    same = [a.loss == b.loss for a, b in zip(calm, flipped, strict=True)]
    assert same == [True] * (AT_STEP - 1) + [False] * (len(calm) - AT_STEP + 1)
