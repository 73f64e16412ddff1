"""Chapter 08's runs: the ranks agree, the messages have their order, and a wrong formula is noticed."""

import pytest
from torch import nn

from helpers.chapters import zero, zero_cells
from helpers.predict.memory import activations, logits
from helpers.predict.memory.states import bytes_per_parameter
from helpers.predict.time.zero import compare_stages
from helpers.predict.traffic.zero import stage2_share
from helpers.specs import PRESETS, Plan
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
    plain, ahead = (ranks[:2].run(zero.messages_in_order, "Zero3", prefetch)[0] for prefetch in (0, 1))
    backward = [f"{what} {layer}" for layer in (2, 1, 0) for what in ("gather", "reduce-scatter")]
    assert zero.message_names(plain)[3:] == backward
    assert plain == ranks[:2].run(zero.messages_in_order, "MiniFSDP")[0]
    assert sorted(plain) == sorted(ahead) and plain != ahead


def test_ranks_that_clip_what_they_hold_find_other_norms(ranks):
    norm = zero.norm_in_one_process()

    def norm_on_rank(clip):
        return clip(zero.zero3_after_backward()).item()

    of_shards = ranks[:3].run(norm_on_rank, lambda model: nn.utils.clip_grad_norm_(list(model.parameters()), 0.5))
    assert len(set(of_shards)) == 3
    of_all = ranks[:3].run(norm_on_rank, lambda model: model.clip_grad_norm_(0.5))
    assert of_all == pytest.approx([norm] * 3, rel=1e-12)


def test_two_ranks_resume_what_three_saved(ranks):
    files, verdict = zero.resumed(ranks[:3], ranks[:2])
    assert len(files) == 4 and "equal" in verdict


def test_a_device_that_is_too_small_is_named_by_what_fails(ranks):
    verdicts = [ranks[:2].run(zero.train_on_device_of, size)[0][0] for size in (10_000_000, 900_000)]
    assert verdicts == ["trains", "cannot be built"]
    assert "Adafactor is not elementwise" in ranks[:2].run(zero.adafactor_error)[0]


def test_the_peak_that_the_chapter_adds_up():
    """Bytes of a rank of FSDP2 that trains Llama 2 7B on 64 GPUs, one sequence of 4,096 tokens on each."""
    llama = PRESETS["llama2-7b"]
    layer, tables = llama.params_per_layer, 2 * llama.vocab * llama.hidden
    rows = {
        "shards": 16 * llama.num_params / 64, "two gathered layers": 2 * 2 * layer, "gradients of a layer": 6 * layer,
        "tensors of the loss": 3 * logits(llama, Plan()), "embedding and head": 2 * tables,
        "activations": activations(llama, Plan()),
    }  # fmt: skip
    assert [round(size / 1e9, 1) for size in rows.values()] == [1.7, 0.8, 1.2, 1.6, 0.5, 17.2]


def test_the_seconds_and_bytes_of_the_slow_network():
    times = compare_stages(PRESETS["llama2-7b"], (100, 300, 400, 1000), num_microbatches=1)
    assert [[round(taken, 2) for taken in stage.values()] for stage in times.values()] == [
        [2.58, 1.17, 0.99, 0.67], [2.18, 0.76, 0.58, 0.43], [3.25, 1.13, 0.86, 0.43],
    ]  # fmt: skip
    assert [zero_cells.crossing(times, name) for name in ("stage 1", "stage 1, overlapped")] == [300, 1000]
    accumulated = compare_stages(PRESETS["llama2-7b"], (100,), num_microbatches=16)
    assert round(accumulated["stage 1, overlapped"][100], 1) == 8.5
    engines = [Plan(dp=64, zero=1), Plan(dp=64, zero=1, precision="mixed_fp32_grads"), Plan(dp=64, zero=3)]
    assert [round(7.5 * bytes_per_parameter(plan), 1) for plan in engines] == [31.4, 46.4, 1.9]


def test_what_is_sent_is_compared_in_words():
    assert [zero_cells.compared_with_ddp(share) for share in (1.5, 2.25, 1.8)] == [
        "the same", "1.5 times as much", "1.20 times as much",
    ]  # fmt: skip
