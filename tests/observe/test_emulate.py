"""Simulated steps that real ranks play come out as predicted: the same messages and actions, about the same times."""

import math

import pytest

from helpers.observe.emulate import (
    MAX_RANKS,
    emulate_ddp_step,
    emulate_pipeline_step,
    emulate_zero3_step,
    larger_bubble,
)
from helpers.predict.time.data_parallel import BackwardPass, simulate_ddp_step
from helpers.predict.time.pipeline import simulate
from helpers.predict.time.zero import Zero3Step, simulate_zero3_step
from helpers.schedules import gpipe, interleaved, one_f_one_b, zb_h1
from helpers.specs import Link

# Four gradients of 4 MiB, 5 ms each; a link that is as fast as backward.
PASS = BackwardPass(
    names=("d", "c.weight", "b", "a"), num_bytes=(2**22,) * 4, seconds=(0.005,) * 4, forward_seconds=0.01
)
LINK = Link(latency=1e-4, bandwidth=1.2e9)


def both(**options):
    options = {"link": LINK, "world_size": 2, "bucket_cap_mb": 4, "first_bucket_mb": 1} | options
    return simulate_ddp_step(PASS, **options), emulate_ddp_step(PASS, **options)


def messages(timeline, rank):
    return [span.num_bytes for span in timeline.for_rank(rank).spans if span.lane == "communication"]


def compute(timeline, rank, kind):
    return [span.name for span in timeline.for_rank(rank).spans if span.kind == kind]


@pytest.fixture(scope="module")
def overlapped():
    return both()


def test_every_rank_sends_the_messages_that_were_predicted(overlapped):
    predicted, emulated = overlapped
    assert (emulated.source, emulated.ranks, emulated.title) == ("emulated", (0, 1), predicted.title)
    assert messages(emulated, 0) == messages(emulated, 1) == messages(predicted, 0) == [2**22] * 4


def test_layers_run_in_the_order_of_the_pass_and_keep_their_names(overlapped):
    emulated = overlapped[1]
    assert compute(emulated, 1, "backward") == list(PASS.names)
    (forward,) = (span for span in emulated.for_rank(1).spans if span.kind == "forward")
    assert forward.duration > 0.9 * PASS.forward_seconds


def test_nothing_is_faster_than_the_model_and_the_scale_is_that_of_the_model(overlapped):
    """A busy machine only ever adds time; a mistake of scale would be off by the slowdown, about 25."""
    predicted, emulated = overlapped
    assert 0.98 * predicted.duration < emulated.duration < 10 * predicted.duration
    assert emulated.busy(0, "communication") > 0.9 * predicted.busy(0, "communication")


def test_a_link_carries_one_message_at_a_time(overlapped):
    spans = [span for span in overlapped[1].for_rank(0).spans if span.lane == "communication"]
    assert all(one.end <= two.start for one, two in zip(spans, spans[1:], strict=False))


def test_one_bucket_for_everything_hides_nothing():
    _, emulated = both(bucket_cap_mb=math.inf, first_bucket_mb=math.inf)
    assert messages(emulated, 0) == [2**24]
    sent = emulated.busy(0, "communication")
    assert emulated.exposed_communication(0) > 0.9 * sent


# ---- a pipeline ----


TIMES = dict(forward=0.01, backward_input=0.01, backward_weight=0.01, send=0.001)


@pytest.mark.parametrize("schedule", [zb_h1(3, 3), interleaved(4, 2, 2)], ids=lambda schedule: schedule.name)
def test_every_rank_plays_its_list_and_nothing_is_faster_than_the_model(schedule):
    """A busy machine only ever adds time; a mistake of scale would be off by the slowdown, about 10."""
    predicted, emulated = simulate(schedule, **TIMES), emulate_pipeline_step(schedule, **TIMES)
    assert (emulated.source, emulated.num_ranks) == ("emulated", schedule.num_ranks)
    for rank, row in enumerate(schedule.actions):
        assert [span.name for span in emulated.for_rank(rank).spans] == list(map(str, row))
        assert emulated.busy(rank) == pytest.approx(predicted.busy(rank))
    assert 0.98 * predicted.duration < emulated.duration < 5 * predicted.duration


def test_a_step_without_duration_gets_a_sentence():
    with pytest.raises(ValueError, match="nothing to play"):
        emulate_pipeline_step(gpipe(2, 1), forward=0, backward_input=0, backward_weight=0)


def test_the_larger_bubble_is_named_and_a_small_difference_is_none():
    times = dict(forward=0.01, backward_input=0.01, backward_weight=0.01)
    free = {name: simulate(order(4, 8), **times) for name, order in (("GPipe", gpipe), ("1F1B", one_f_one_b))}
    slow = {
        name: simulate(order(4, 8), **times, send=0.01) for name, order in (("GPipe", gpipe), ("1F1B", one_f_one_b))
    }
    assert (larger_bubble(free), larger_bubble(slow)) == ("they stay equally large", "1F1B's is larger")


# ---- ZeRO-3 ----


# Three layers of 8 MiB; their gathers take about as long as their forwards.
STEP = Zero3Step(names=("a", "b", "c"), num_bytes=(2**23,) * 3, forward=(0.01,) * 3, backward=(0.02,) * 3)
SLOWER = Link(latency=1e-4, bandwidth=5e8)


@pytest.fixture(scope="module", params=[0, 1], ids=["no prefetch", "prefetch"])
def zero3(request):
    options = dict(link=SLOWER, world_size=2, prefetch=request.param)
    return simulate_zero3_step(STEP, **options), emulate_zero3_step(STEP, **options)


def of(timeline, lane):
    return sorted((span for span in timeline.for_rank(0).spans if span.lane == lane), key=lambda span: span.start)


def test_the_messages_and_the_layers_are_those_of_the_prediction(zero3):
    predicted, emulated = zero3
    assert (emulated.source, emulated.ranks, emulated.title) == ("emulated", (0, 1), predicted.title)
    sent = [[(span.name.split()[0], span.num_bytes) for span in of(line, "communication")] for line in zero3]
    assert sent[0] == sent[1] and len(sent[0]) == 9
    ran = [[(span.kind, span.name) for span in of(line, "compute")] for line in zero3]
    assert ran[0] == ran[1] and len(ran[0]) == 6


def test_no_gather_is_faster_than_the_model_and_the_scale_is_that_of_the_model(zero3):
    """A busy machine only ever adds time; a mistake of scale would be off by the slowdown, about 10."""
    predicted, emulated = zero3
    assert 0.98 * predicted.duration < emulated.duration < 5 * predicted.duration


def test_a_gather_runs_beside_compute_only_if_it_was_fetched_ahead(zero3):
    for line in zero3:
        forward = [span for span in of(line, "compute") if span.kind == "forward"]
        gathers = [span for span in of(line, "communication") if span.name.startswith("all_gather")][1:3]
        middle = 0.5 * STEP.forward[0]
        during = [any(g.start < f.start + middle < g.end for f in forward) for g in gathers]
        assert during == [line.title.endswith("prefetch 1")] * 2


def test_the_last_reduce_scatter_comes_after_all_compute(zero3):
    for line in zero3:
        assert of(line, "communication")[-1].end > of(line, "compute")[-1].end


@pytest.mark.parametrize(
    "emulate",
    [
        lambda: emulate_ddp_step(PASS, link=LINK, world_size=64),
        lambda: emulate_pipeline_step(gpipe(64, 1), **TIMES),
        lambda: emulate_zero3_step(STEP, link=SLOWER, world_size=64),
    ],
    ids=["DDP", "pipeline", "ZeRO-3"],
)
def test_more_ranks_than_a_machine_should_run_get_a_sentence(emulate):
    with pytest.raises(ValueError, match=f"64 ranks .* emulate 1 to {MAX_RANKS}"):
        emulate()
