"""Simulated steps of DistributedDataParallel and nn.DataParallel."""

from __future__ import annotations

import pytest

from helpers.predict.time.data_parallel import (
    BackwardPass,
    DataParallelStep,
    gpt_backward,
    simulate_data_parallel_step,
    simulate_ddp_step,
)
from helpers.predict.traffic.data_parallel import data_parallel_traffic, master_link_bytes
from helpers.specs import PRESETS, Link, ModelSpec

MIB = 1024**2
DDP_LINK = Link(latency=0.5, bandwidth=2 * MIB)  # 2 ranks: an all-reduce of n MiB takes 1 + n / 2 seconds
FOUR = BackwardPass(names=tuple("dcba"), num_bytes=(2 * MIB,) * 4, seconds=(1.0, 1.0, 1.0, 1.0), forward_seconds=2.0)


def step(strategy, **options):
    return simulate_ddp_step(FOUR, link=DDP_LINK, world_size=2, strategy=strategy, **options)


def messages(timeline):
    return [(s.start, s.end, s.num_bytes) for s in timeline.for_rank(0).spans if s.lane == "communication"]


def test_naive_sends_each_gradient_after_backward():
    timeline = step("naive")
    assert messages(timeline) == [(6 + 2 * i, 8 + 2 * i, 2 * MIB) for i in range(4)]
    assert timeline.duration == 14
    assert timeline.exposed_communication(0) == 8


def test_flat_sends_once_after_backward():
    assert messages(step("flat")) == [(6, 11, 8 * MIB)]


def test_buckets_pay_the_latency_less_often_than_naive():
    timeline = step("bucketed", bucket_cap_mb=4, first_bucket_mb=1)
    assert messages(timeline) == [(6, 8, 2 * MIB), (8, 11, 4 * MIB), (11, 13, 2 * MIB)]


def test_overlap_sends_a_bucket_when_it_is_full_and_the_link_is_free():
    timeline = step("overlapped", bucket_cap_mb=4, first_bucket_mb=1)
    assert messages(timeline) == [(3, 5, 2 * MIB), (5, 8, 4 * MIB), (8, 10, 2 * MIB)]
    assert timeline.duration == 10
    assert timeline.exposed_communication(0) == 4  # the rest hides behind backward


def test_a_huge_bucket_hides_nothing():
    assert messages(step("overlapped", bucket_cap_mb=100, first_bucket_mb=100)) == messages(step("flat"))


def test_a_fast_link_exposes_only_the_last_bucket():
    link = Link(latency=0, bandwidth=1e15)
    timeline = simulate_ddp_step(FOUR, link=link, world_size=4, bucket_cap_mb=2, optimizer_seconds=0.5)
    assert timeline.duration == pytest.approx(6.5)


def test_one_rank_sends_nothing():
    timeline = simulate_ddp_step(FOUR, link=DDP_LINK, world_size=1)
    assert [s.lane for s in timeline.spans] == ["compute"] * 5
    assert timeline.duration == 6


def test_a_gradient_is_held_from_the_moment_it_is_ready():
    timeline = step("overlapped", bucket_cap_mb=4, first_bucket_mb=1, optimizer_seconds=1.0)
    held = [timeline.holds(1, instant) for instant in (0, 2.9, 3, 5.5, 6, timeline.end)]
    assert [memory.gradients / MIB for memory in held] == [0, 0, 2, 6, 8, 8]
    assert {memory.parameters / MIB for memory in held} == {8}
    assert sum(memory.total - memory.parameters - memory.gradients for memory in held) == 0
    assert timeline.end == 11 == max(holding.end for holding in timeline.held)


def test_every_rank_does_the_same_and_few_may_be_shown():
    assert step("overlapped").ranks == (0, 1)
    assert simulate_ddp_step(FOUR, link=DDP_LINK, world_size=1024, shown_ranks=2).num_ranks == 2
    assert step("naive").source == "predicted"


def test_gpt_backward_holds_every_parameter_and_six_operations_each():
    model = ModelSpec(num_layers=6, hidden=384, num_heads=6, vocab=68, seq=64)
    backward = gpt_backward(model, tokens=1000, flops_per_second=1e9)
    assert sum(backward.num_bytes) == 4 * model.num_params == 4 * 10_698_240
    llama = gpt_backward(PRESETS["llama3-8b"], tokens=8192, flops_per_second=4e14, bytes_per_gradient=2)
    assert sum(llama.num_bytes) == 2 * PRESETS["llama3-8b"].num_params
    total = sum(backward.seconds) + backward.forward_seconds
    assert total == pytest.approx(6 * model.num_params * 1000 / 1e9)
    assert backward.names[0] == "block 5 down"
    assert backward.names[-1] == "embeddings"


STEP = {"parameter_bytes": 4000, "input_bytes": 400, "output_bytes": 800, "forward_seconds": 4.0}
STEP |= {"backward_seconds": 8.0, "python_seconds": 0.5, "optimizer_seconds": 1.0}
LINK = Link(latency=0.0, bandwidth=1000.0)


def test_times_worked_by_hand_on_four_devices():
    timeline = simulate_data_parallel_step(DataParallelStep(num_devices=4, **STEP), link=LINK)
    copies = 3 * (0.1 + 4.0 + 0.2 + 0.2 + 4.0)
    compute = (4 * 0.5 + 4.0 / 4) + 8.0 / 4 + 1.0
    assert timeline.duration == pytest.approx(copies + compute)
    assert timeline.exposed_communication(0) == pytest.approx(copies)  # nothing hides


def test_one_device_sends_nothing():
    timeline = simulate_data_parallel_step(DataParallelStep(num_devices=1, **STEP), link=LINK)
    assert timeline.duration == pytest.approx(0.5 + 4.0 + 8.0 + 1.0)
    assert not [span for span in timeline.spans if span.lane == "communication"]


def test_bytes_on_the_master_equal_the_predicted_traffic():
    timeline = simulate_data_parallel_step(DataParallelStep(num_devices=4, **STEP), link=LINK)
    carried = sum(span.num_bytes for span in timeline.for_rank(0).spans)
    assert carried == master_link_bytes(data_parallel_traffic(1000, num_devices=4, input_bytes=400, output_bytes=800))


def test_every_message_has_two_ends_at_the_same_time():
    timeline = simulate_data_parallel_step(DataParallelStep(num_devices=3, **STEP), link=LINK)
    sent = [(s.name, s.start, s.end) for s in timeline.for_rank(0).spans if s.lane == "communication"]
    other_ends = [(s.name, s.start, s.end) for s in timeline.spans if s.lane == "communication" and s.rank]
    assert sorted(sent) == sorted(other_ends)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: step("fast"), "'fast', but it must be one of naive, flat, bucketed, overlapped"),
        (lambda: step("naive", shown_ranks=3), "from 1 to the world size, 2"),
        (lambda: BackwardPass(names=("a", "b"), num_bytes=(1,), seconds=(1.0,)), "2 names, 1 sizes and 1 durations"),
        (lambda: BackwardPass(names=("a",), num_bytes=(1,), seconds=(-1.0,)), "negative size or duration"),
        (lambda: DataParallelStep(**{**STEP, "num_devices": 0}), "expected"),
        (lambda: DataParallelStep(num_devices=2, **{**STEP, "forward_seconds": -1.0}), "expected"),
        (lambda: DataParallelStep(num_devices=2, **{**STEP, "parameter_bytes": float("nan")}), "expected"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
