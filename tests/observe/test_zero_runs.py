"""What chapter 08 counts: the ranks agree, the walk has its order, and a wrong formula is noticed."""

import pytest

from helpers.observe import zero_cases, zero_runs
from helpers.predict.traffic.zero import stage2_share
from helpers.workloads import GPTConfig


def test_ranks_hold_less_stage_by_stage_and_the_same_activations(ranks):
    held = zero_runs.held_by_stage(ranks[:2], GPTConfig.tiny())
    totals = [one.total for one in held.values()]
    assert totals == sorted(totals, reverse=True) and len(set(totals)) == 4
    assert len({one.activations for one in held.values()}) == 1


def test_a_share_is_counted_and_another_message_than_predicted_is_an_error(ranks, monkeypatch):
    assert zero_runs.counted_share(ranks[:2], 2, 3) == stage2_share(2, num_microbatches=3)
    monkeypatch.setattr(zero_runs, "UNITS", [[0], [1], [2, 3], [4, 5]])
    with pytest.raises(RuntimeError, match="stage 3 sent"):
        zero_runs.counted_share(ranks[:2], 3)


def test_prefetch_asks_for_the_next_layer_before_gradients_leave(ranks):
    plain, ahead = (ranks[:2].run(zero_runs.walk, "ours", prefetch)[0] for prefetch in (0, 1))
    backward = ["gather 2", "reduce-scatter 2", "gather 1", "reduce-scatter 1", "gather 0", "reduce-scatter 0"]
    assert zero_runs.told_messages(plain)[3:] == backward
    assert sorted(plain) == sorted(ahead) and plain != ahead


def test_ranks_that_clip_what_they_hold_find_other_norms(ranks):
    whole = zero_cases.norm_in_one_process()
    assert len(set(ranks[:3].run(zero_cases.norm_of_shards))) == 3
    assert ranks[:3].run(zero_cases.norm_of_all) == pytest.approx([whole] * 3, rel=1e-12)


def test_two_ranks_resume_what_three_saved(ranks):
    files, verdict = zero_cases.resumed(ranks[:3], ranks[:2])
    assert len(files) == 4 and "equal" in str(verdict)


def test_a_device_that_is_too_small_is_named_by_what_fails(ranks):
    found = [ranks[:2].run(zero_cases.fits, size)[0][0] for size in (10_000_000, 900_000)]
    assert found == ["trains", "cannot be built"]
    assert "Adafactor is not elementwise" in ranks[:2].run(zero_cases.refused)[0]
