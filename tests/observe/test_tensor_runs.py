"""What chapter 07 runs: each predicted message is compared, and the other cuts are wrong for their own reason."""

import pytest

from helpers.observe import tensor_cases, tensor_runs


@pytest.mark.parametrize("a", tensor_cases.CUTS)
@pytest.mark.parametrize("b", tensor_cases.CUTS)
def test_one_order_of_four_needs_one_sum(a, b):
    assert tensor_cases.one_sum_is_enough(a, b) == ((a, b) == ("columns", "rows"))


def test_another_message_than_the_predicted_one_is_an_error(ranks, monkeypatch):
    assert len(tensor_runs.of_one_layer(tensor_runs.counted(ranks[:2], batch=1))) == 4
    real = tensor_runs.tensor_parallel_traffic
    monkeypatch.setattr(tensor_runs, "tensor_parallel_traffic", lambda *args, batch: real(*args, batch=batch + 1))
    with pytest.raises(RuntimeError, match="was predicted"):
        tensor_runs.counted(ranks[:2], batch=1)


def test_equal_seeds_draw_copies(ranks):
    first, second = tensor_cases.drawn(ranks[:2], lambda: 7).chunk(2)
    assert first.equal(second)
