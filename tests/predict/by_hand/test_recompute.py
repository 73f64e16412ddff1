"""A step with recomputation: one more forward of each block, directly before its backward."""

import pytest

from helpers.predict.by_hand.recompute import recomputed_step


def test_each_block_runs_again_directly_before_its_backward():
    names = [span.name for span in recomputed_step(2, recompute=True).spans]
    assert names == ["run 0", "run 1", "again 1", "backward 1", "again 0", "backward 0"]


def test_it_is_a_third_longer():
    kept, again = (recomputed_step(5, recompute=recompute).duration for recompute in (False, True))
    assert again / kept == pytest.approx(4 / 3)


def test_no_block_is_a_sentence():
    with pytest.raises(ValueError, match="got 0 blocks"):
        recomputed_step(0, recompute=True)
