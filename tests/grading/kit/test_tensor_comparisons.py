"""Comparisons of tensors with the right ones, and the sentences about what differs."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.devices import FillUninitialized
from helpers.grading.kit.tensor_comparisons import (
    describe_tensor,
    expect_tensor,
    expect_tensors,
    is_close,
    num_equal_digits,
)
from helpers.learner.words import Words

HALF = torch.tensor([0.5, -1.5], dtype=torch.float64)


def test_rounding_is_equal_and_more_is_not():
    assert is_close(HALF, HALF + 1e-12)
    assert not is_close(HALF, HALF + 1e-9)
    assert is_close(HALF.float(), HALF.float() + 1e-6)
    assert not is_close(HALF.float(), HALF.float() + 1e-4)
    assert not is_close(HALF, HALF.float())
    assert not is_close(HALF, HALF * float("nan"))
    assert not is_close(torch.tensor([1]), torch.tensor([2]))
    assert not is_close(HALF, HALF.tolist())


def test_a_wrong_tensor_is_described():
    finding = expect_tensor("it", HALF, HALF * 3)
    assert not finding.ok
    assert finding.message.en == "it is 3.00 times the right value"
    assert expect_tensor("it", HALF, HALF * 2, before=HALF * 2).message.en.startswith("it is unchanged")


def test_a_mistake_is_known_by_its_value():
    mistakes = {"double": HALF * 2, "either": [HALF * 5, HALF * 3], "nothing": None, "right": HALF}
    assert expect_tensor("it", HALF, HALF * 2, mistakes=mistakes).mistakes == ("double",)
    assert expect_tensor("it", HALF, HALF * 3, mistakes=mistakes).mistakes == ("either",)
    assert expect_tensor("it", HALF, None, mistakes=mistakes).mistakes == ("nothing",)
    assert expect_tensor("it", HALF, HALF * 7, mistakes=mistakes).mistakes == ()
    assert expect_tensor("it", HALF, HALF, mistakes=mistakes).ok


def test_named_tensors_are_compared_one_by_one():
    what = Words(en="the weight {}", zh="权重 {} ")
    wrong = {"double": {"a": HALF * 2, "b": HALF * 2}}
    good, bad = expect_tensors(what, {"a": HALF, "b": HALF}, {"a": HALF, "b": HALF * 2}, mistakes=wrong)
    assert good.ok
    assert bad.message.en == "the weight b is 2.00 times the right value"
    assert bad.message.zh == "权重 b 是正确值的 2.00 倍"
    assert bad.mistakes == ("double",)
    assert [finding.ok for finding in expect_tensors(what, {"a": HALF}, None)] == [False]


DUE = torch.tensor([0.51234567891, -1.5, 2.25, 4.75], dtype=torch.float64)
IT = Words.of("it")


def told(got, due=DUE, **more) -> str:
    return describe_tensor(IT, due, got, **more).en


@pytest.mark.parametrize(
    ("got", "sentence"),
    [
        (None, "it is None, expected a tensor of shape (4,)"),
        ("<Work>", "it is '<Work>', expected a tensor of shape (4,)"),
        (DUE.float(), "it has dtype float32, expected float64"),
        (DUE[:3], "it has shape (3,), expected (4,)"),
        (torch.ones(3), "it has shape and dtype (3,) float32, expected (4,) float64"),
        (DUE * 3, "it is 3.00 times the right value"),
        (DUE / 1000, "it is 0.001 times the right value"),
        (-DUE, "it has the opposite sign of the right value"),
        (DUE * 0, "it is zero everywhere, expected for example 4.75 at [3]"),
        (DUE.flip(0), "it has the right values in another order: at [0] it is 4.75, expected 0.512346"),
        (DUE + torch.tensor([0.0, 1.0, 0.0, 0.0]), "it at [1] is -0.5, expected -1.5; 1 of its 4 elements differ"),
        (DUE.tolist(), f"it is a list or a NumPy array, {DUE.tolist()}, expected a tensor of shape (4,)"),
        (DUE * math.nan, "it at [0] is nan, expected 0.512346; of its 4 elements 4 are inf or NaN"),
    ],
)
def test_a_wrong_tensor(got, sentence):
    assert told(got) == sentence


def test_rows_or_columns_that_differ_are_named():
    due = torch.arange(1.0, 25.0, dtype=torch.float64).reshape(4, 6)
    row, columns = due.clone(), due.clone()
    row[2] = 0
    columns[:, 1:3] += 1
    assert told(row, due).endswith("; 6 of its 24 elements differ, all of them in row 2")
    assert told(columns, due).endswith("; 8 of its 24 elements differ, all of them in columns 1 and 2")


def test_memory_that_nobody_wrote_to_is_called_so():
    with FillUninitialized():
        got = torch.empty(4, dtype=torch.float64)
    assert "nothing was written to this memory" in told(got)
    assert "nothing was written to this memory" in told((got + DUE) / 3)
    assert "nothing was written" not in told(DUE * 1e9 + 1)


def test_lost_precision_shows_the_digits_and_never_a_factor_of_one():
    assert told(DUE * (1 + 1e-6)) == "it at [3] is 4.75000475, expected 4.75: 6 digits agree and no more"
    assert "times" not in told(DUE * 1.004)
    assert "1.01 times" in told(DUE * 1.01)


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 7), (torch.float16, 3), (torch.bfloat16, 2)])
def test_a_dtype_is_named_only_where_rounding_to_it_gives_exactly_what_came(dtype, digits):
    due = torch.tensor([0.123456789012, -0.98765432109], dtype=torch.float64)
    assert f"as after a step in {str(dtype).removeprefix('torch.')}" in told(due.to(dtype).double(), due)
    noise = due.to(dtype).double() * torch.tensor([1 + 1e-12, 1.0], dtype=torch.float64)
    assert "as after" not in told(noise, due)
    coarse = torch.tensor([1.1796875, 0.5], dtype=torch.float64)
    assert "as after" not in told(coarse, coarse + 1 / 128), "what is due fits, too: no rounding gives the other"
    whole = torch.tensor([100.0, 101.0], dtype=torch.float64)
    assert "as after" not in told(whole, whole + 0.01), "a whole number fits into every dtype"


def test_what_was_to_be_changed_in_place_and_was_not_is_called_unchanged():
    before = DUE + 1
    assert told(before, before=before).startswith("it is unchanged, still what it was before the call: at [")
    assert "unchanged" not in told(before + 1, before=before)


def test_an_infinity_that_is_due_is_not_the_place_that_is_named():
    due = torch.tensor([math.inf, 1.0], dtype=torch.float64)
    assert told(torch.tensor([math.inf, 2.0], dtype=torch.float64), due) == "it at [1] is 2, expected 1"


def test_whole_numbers_and_truth_values_are_shown_as_such():
    said = told(torch.tensor([12345678, 2]), torch.tensor([12345679, 2]))
    assert said.startswith("it at [0] is 12345678, expected 12345679")
    assert told(torch.tensor(True), torch.tensor(False)) == "it is True, expected False"


@pytest.mark.parametrize(
    ("got", "due", "digits"), [(1.00123, 1.00099, 3), (1.0, -1.0, 0), (2.0, 1.0, 0), (1.0, 1.0, 0)]
)
def test_digits_that_agree(got, due, digits):
    assert num_equal_digits(got, due) == digits
