"""Chapter 07's runs: each predicted message is compared, and only one order of splits needs one sum."""

import pytest

from helpers.chapters import tensor_parallel


@pytest.mark.parametrize("a", tensor_parallel.SPLITS)
@pytest.mark.parametrize("b", tensor_parallel.SPLITS)
def test_one_order_of_four_needs_one_sum(a, b):
    assert tensor_parallel.is_one_sum_enough(a, b) == ((a, b) == ("columns", "rows"))


def test_another_message_than_the_predicted_one_is_an_error(ranks, monkeypatch):
    log = tensor_parallel.checked_messages(ranks[:2], batch=1)
    assert len(tensor_parallel.messages_of_first_block(log)) == 4
    assert all(event.end > event.start for event in log.events)  # they were sent, and not only predicted
    real = tensor_parallel.tensor_parallel_traffic
    monkeypatch.setattr(tensor_parallel, "tensor_parallel_traffic", lambda *args, batch: real(*args, batch=batch + 1))
    with pytest.raises(RuntimeError, match="was predicted"):
        tensor_parallel.checked_messages(ranks[:2], batch=1)


def test_equal_seeds_draw_replicas(ranks):
    first, second = tensor_parallel.draw_weight(ranks[:2], lambda: 7).chunk(2)
    assert first.equal(second)
