"""assert_equal says where two sets of tensors part, and passes what only rounds differently."""

import pytest
import torch
from torch import nn

from helpers.observe.equality import assert_equal, state_of


def tensors(dtype=torch.float32, **changes):
    torch.manual_seed(0)
    found = {"weight": torch.randn(3, 4, dtype=dtype), "bias": torch.randn(4, dtype=dtype)}
    return {**found, **changes}


def test_the_line_counts_tensors_and_ranks():
    assert assert_equal(tensors(), [tensors()] * 4) == "equal: 2 tensors x 4 ranks, largest difference 0"
    assert assert_equal(tensors(), tensors()) == "equal: 2 tensors, largest difference 0"


def test_the_line_gives_the_largest_relative_difference():
    reference = {"a": torch.tensor([100.0, 1.0])}
    line = assert_equal(reference, {"a": reference["a"] + torch.tensor([0.0, 3e-4])})
    assert line == "equal: 1 tensors, largest difference 3.0e-6"


@pytest.mark.parametrize(
    ("dtype", "passes", "fails"),
    [(torch.float64, 1e-11, 1e-9), (torch.float32, 3e-6, 1e-4), (torch.float16, 3e-3, 3e-2)],
)
def test_tolerance_follows_the_dtype(dtype, passes, fails):
    reference = {"a": torch.ones(5, dtype=dtype)}
    assert_equal(reference, {"a": reference["a"] * (1 + passes)})
    with pytest.raises(AssertionError):
        assert_equal(reference, {"a": reference["a"] * (1 + fails)})
    assert_equal(reference, {"a": reference["a"] * (1 + fails)}, rtol=2 * fails)


def test_the_message_names_rank_tensor_place_and_values():
    wrong = tensors()
    wrong["weight"][1, 2] += 1
    where = r"rank 2 of 3: weight differs, most at \(1, 2\): \S+, expected \S+"
    with pytest.raises(AssertionError, match=rf"{where} \(relative difference"):
        assert_equal(tensors(), [tensors(), tensors(), wrong])
    with pytest.raises(AssertionError, match=rf"{where} \(difference 1.0e0, allowed 5.0e-1\)"):
        assert_equal(tensors(), [tensors(), tensors(), wrong], atol={"weight": 0.5})


def test_a_sum_where_a_mean_is_meant_shows_as_a_factor():
    with pytest.raises(AssertionError, match=r"3.00 times the expected one\n\(tensors that differ as well: 1\)"):
        assert_equal(tensors(), {name: 3 * t for name, t in tensors().items()})


def test_nan_and_inf_differ():
    for odd in (float("nan"), float("inf")):
        with pytest.raises(AssertionError, match=r"bias differs, most at \(0,\)"):
            assert_equal(tensors(), tensors(bias=torch.tensor([odd, 0, 0, 0])))


def test_names_shapes_and_dtypes_must_match():
    with pytest.raises(AssertionError, match=r"missing tensors \['bias'\], unexpected tensors \['b'\]"):
        assert_equal(tensors(), {"weight": tensors()["weight"], "b": tensors()["bias"]})
    with pytest.raises(AssertionError, match=r"bias is \(3,\) torch.float32, expected \(4,\) torch.float32"):
        assert_equal(tensors(), tensors(bias=torch.zeros(3)))
    with pytest.raises(AssertionError, match="bias is .* torch.float64"):
        assert_equal(tensors(), tensors(bias=tensors()["bias"].double()))


def test_a_gradient_that_is_zero_in_theory_has_its_own_tolerance():
    reference, actual = {"x.key.bias": torch.tensor([1e-9])}, {"x.key.bias": torch.tensor([-2e-9])}
    with pytest.raises(AssertionError):
        assert_equal(reference, actual)
    assert assert_equal(reference, actual, atol={"*.key.bias": 1e-8}).endswith("difference 3.0e-9")


def test_whole_numbers_and_empty_tensors():
    assert_equal({"n": torch.tensor([3]), "e": torch.zeros(0)}, {"n": torch.tensor([3]), "e": torch.zeros(0)})
    with pytest.raises(AssertionError):
        assert_equal({"n": torch.tensor([3])}, {"n": torch.tensor([4])})


def test_nothing_to_compare_gets_a_sentence():
    with pytest.raises(ValueError, match="0 reference tensors and 1 ranks"):
        assert_equal({}, {})
    with pytest.raises(ValueError, match="at least one of each"):
        assert_equal(tensors(), [])


def test_state_of_holds_copies_of_weights_buffers_and_gradients():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0](torch.ones(1, 2)).sum().backward()
    state = state_of(model)
    assert {"0.weight", "0.weight.grad", "1.running_mean", "1.weight"} <= state.keys()
    assert "1.weight.grad" not in state
    with torch.no_grad():
        model[0].weight.zero_()
    assert state["0.weight"].abs().sum() > 0
