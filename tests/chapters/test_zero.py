"""Chapter 08's runs: the ranks agree, the messages have their order, and a wrong formula is noticed."""

import pytest

from helpers.chapters import zero
from helpers.predict.traffic.zero import stage2_share
from helpers.workloads import GPTConfig


def test_ranks_store_less_stage_by_stage_and_the_same_activations(ranks):
    stored = zero.stored_bytes_by_stage(ranks[:2], GPTConfig.tiny())
    totals = [one.total for one in stored.values()]
    assert totals == sorted(totals, reverse=True) and len(set(totals)) == 4
    assert len({one.activations for one in stored.values()}) == 1


def test_a_share_is_counted_and_another_message_than_predicted_is_an_error(ranks, monkeypatch):
    assert zero.sent_share(ranks[:2], 2, 3) == stage2_share(2, num_microbatches=3)
    monkeypatch.setattr(zero, "UNITS", [[0], [1], [2, 3], [4, 5]])
    with pytest.raises(RuntimeError, match="stage 3 sent"):
        zero.sent_share(ranks[:2], 3)


def test_prefetch_asks_for_the_next_layer_before_gradients_leave(ranks):
    plain, ahead = (ranks[:2].run(zero.messages_in_order, "ours", prefetch)[0] for prefetch in (0, 1))
    backward = ["gather 2", "reduce-scatter 2", "gather 1", "reduce-scatter 1", "gather 0", "reduce-scatter 0"]
    assert zero.message_names(plain)[3:] == backward
    assert sorted(plain) == sorted(ahead) and plain != ahead


def test_ranks_that_clip_what_they_hold_find_other_norms(ranks):
    norm = zero.norm_in_one_process()
    assert len(set(ranks[:3].run(zero.norm_of_shards))) == 3
    assert ranks[:3].run(zero.norm_of_all) == pytest.approx([norm] * 3, rel=1e-12)


def test_two_ranks_resume_what_three_saved(ranks):
    files, verdict = zero.resumed(ranks[:3], ranks[:2])
    assert len(files) == 4 and "equal" in verdict


def test_a_device_that_is_too_small_is_named_by_what_fails(ranks):
    verdicts = [ranks[:2].run(zero.train_on_device_of, size)[0][0] for size in (10_000_000, 900_000)]
    assert verdicts == ["trains", "cannot be built"]
    assert "Adafactor is not elementwise" in ranks[:2].run(zero.adafactor_error)[0]
