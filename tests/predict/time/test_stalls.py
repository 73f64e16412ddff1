"""Workers that keep up, and a step that is as slow as its slowest rank."""

import pytest

from helpers.predict.time.stalls import late_share, workers_needed


def test_so_many_workers_load_a_batch_while_a_step_computes():
    assert workers_needed(0.012, 32, 0.1) == 4  # 384 ms of loading per step of 100 ms
    assert workers_needed(0.001, 32, 0.1) == workers_needed(0.0, 1, 1.0) == 1


def test_a_step_is_late_when_one_rank_is():
    assert late_share(0.1, 1) == pytest.approx(0.1)
    assert late_share(0.5, 2) == 0.75
    assert late_share(0.0, 64) == 0.0 and late_share(1.0, 64) == 1.0


@pytest.mark.parametrize(
    ("call", "arguments", "sentence"),
    [
        (workers_needed, (0.012, 0, 0.1), "a batch of 0"),
        (workers_needed, (0.012, 32, 0.0), "0.0 s per step"),
        (late_share, (1.5, 4), "late in 1.5 of its steps"),
        (late_share, (0.5, 0), "0 ranks"),
    ],
)
def test_what_is_no_share_and_no_batch_is_told(call, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(*arguments)
