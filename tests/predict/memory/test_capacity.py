"""The first divisions of a capacity plan."""

import pytest

from helpers.predict.memory.capacity import gpus_needed, left_over, local_batch, share, together


def test_seventy_billion_with_adam_fill_fourteen_h100s_to_the_last_byte():
    assert gpus_needed(1.12e12, 80e9) == 14
    assert gpus_needed(1.12e12 + 1, 80e9) == 15
    assert gpus_needed(1.12e12, 80e9, usable=0.94) == 15
    assert gpus_needed(1.12e12, 80e9, usable=0.94, per_node=8) == 16
    assert gpus_needed(0, 80e9) == 1


def test_what_gpus_have_together_and_what_is_left():
    assert together(32e9, 4) == 128e9
    assert together(32 * 2**30, 4, usable=0.5) == 64 * 2**30
    assert left_over(1.12e12, 80e9, 14) == 0
    assert left_over(1.12e12, 80e9, 13) == -80e9


def test_shares_and_batches():
    assert share(1, 4) == 0.25
    assert local_batch(768, 48) == 16
    assert local_batch(768, 48, accumulate=2) == 8


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: gpus_needed(1, 1, usable=0), "usable is 0"),
        (lambda: gpus_needed(-1, 1), "cannot spread -1"),
        (lambda: together(32e9, 0), "cannot add up 0 GPUs"),
        (lambda: share(5, 4), "5 of 4"),
        (lambda: local_batch(100, 48), "global batch of 100"),
    ],
)
def test_bad_input_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
