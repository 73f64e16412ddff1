"""Simulated pipelines, against formulas and against each other."""

from __future__ import annotations

import pytest

from helpers.predict.time.pipeline import (
    _Simulation,
    closed_form_seconds,
    pipeline_seconds,
    seconds_by_kind,
    simulate,
    simulated_seconds,
)
from helpers.schedules import ORDERS, gpipe, interleaved, naive, one_f_one_b, zb_h1, zb_h2
from helpers.schedules.actions import BACKWARD, FORWARD
from tests.schedules.written import written

# Qi et al. 2023, table 4: stages, micro-batches, milliseconds of F, B (here: I), W and send, and the bubble rates.
SMALL = (8, 24, 18.522, 18.086, 9.337, 0.601)
LARGE = (16, 48, 11.347, 11.248, 8.132, 0.377)


def play(schedule, forward=1.0, backward_input=1.0, backward_weight=1.0, send=0.0):
    times = {"forward": forward, "backward_input": backward_input, "backward_weight": backward_weight}
    return simulate(schedule, **times, send=send)


def ends(timeline):
    return {span.name: span.end for span in timeline.spans}


@pytest.mark.parametrize(
    "order, setting, published",
    [
        (one_f_one_b, SMALL, 0.2431),
        (zb_h1, SMALL, 0.1585),
        (one_f_one_b, LARGE, 0.2552),
        (zb_h1, LARGE, 0.1397),
        (zb_h2, LARGE, 0.0672),
    ],
)
def test_published_bubble_rates_to_the_printed_digit(order, setting, published):
    p, m, *times = setting
    assert round(play(order(p, m), *times).bubble_fraction, 4) == published


def test_the_published_interleaved_bubble_leaves_out_waits_that_ours_has():
    """Qi et al. publish 0.1055. Their program (megatron/core/pipeline_parallel/interleave.py at f68d387) lets a chunk's
    first stage wait for the last rank at the first micro-batch of a round of p alone, which hides p of 46 sends.
    """
    p, m, *times, send = SMALL
    schedule, each = interleaved(3 * p, m, 3), [seconds / 3 for seconds in times]
    game = _Simulation(schedule, seconds_by_kind(schedule.num_stages, *each), send)
    for kind, first in ((FORWARD, range(p, 3 * p, p)), (BACKWARD, range(p - 1, 2 * p, p))):
        for stage in first:
            rule = game.rules[kind][stage]
            game.rules[kind][stage] = rule._replace(received=FirstOfRound(rule.received, p))
    theirs, ours, free = max(span.end for span in game.spans()), play(schedule, *each, send), play(schedule, *each)
    assert round(1 - m * sum(times) / theirs, 4) == 0.1055 and round(ours.bubble_fraction, 4) == 0.1090
    assert [round((end - free.duration) / send, 6) for end in (ours.duration, theirs)] == [46, 46 - p]


class FirstOfRound:
    """What has ended on another stage, to one that asks for the first of each `p` micro-batches only."""

    def __init__(self, ends, p):
        self.ends, self.p, self.waiting = ends, p, ends.waiting

    def __getitem__(self, j):
        return self.ends[j] if j % self.p == 0 else 0.0


@pytest.mark.parametrize("order", [gpipe, one_f_one_b])
def test_gpipe_and_1f1b_have_the_same_bubble_and_it_is_the_closed_form(order):
    for p in range(1, 17):
        for m in range(1, 17):
            timeline = play(order(p, m), 1.0, 1.25, 0.75)
            assert timeline.bubble_fraction == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)
            assert timeline.bubble_over_ideal == pytest.approx((p - 1) / m, abs=1e-12)


def test_interleaving_divides_the_bubble_by_the_chunks():
    """Narayanan et al. 2021, section 2.2.2: (p - 1) / (c m) over the ideal time."""
    for num_chunks in (1, 2, 4):
        timeline = play(interleaved(4 * num_chunks, 8, num_chunks))
        assert timeline.bubble_over_ideal == pytest.approx(3 / (8 * num_chunks), abs=1e-12)


def test_naive_lets_one_rank_work_at_a_time():
    timeline = play(naive(4, 3))
    assert timeline.duration == 4 * 3 * 3
    assert timeline.bubble_fraction == pytest.approx(1 - 1 / 4, abs=0.05)


def test_a_rank_runs_its_list_in_order_and_waits_for_what_it_needs():
    end = ends(play(gpipe(2, 2), forward=1.0, backward_input=2.0, backward_weight=3.0, send=0.5))
    assert end == {
        "0F0": 1.0, "0F1": 2.0, "1F0": 2.5, "1F1": 3.5,
        "1B0": 8.5, "1B1": 13.5, "0B0": 14.0, "0B1": 19.0,
    }  # fmt: skip


def test_a_full_backward_releases_its_gradient_after_both_parts_and_a_split_one_after_the_first():
    whole = ends(play(one_f_one_b(2, 1), 1.0, 2.0, 3.0))
    split = ends(play(zb_h1(2, 1), 1.0, 2.0, 3.0))
    assert (whole["1B0"], whole["0B0"]) == (7.0, 12.0)
    assert (split["1I0"], split["0I0"]) == (4.0, 6.0)


def test_a_send_does_not_occupy_the_rank():
    assert ends(play(gpipe(2, 2), send=10.0))["0F1"] == 2.0


def test_chunks_of_one_rank_send_nothing_to_each_other():
    schedule = written("0F0,1F0,1B0,0B0\n")
    assert play(schedule, send=100.0).duration == 6.0


def test_a_slow_stage_slows_all():
    slow = play(one_f_one_b(4, 8), forward=[1.0, 1.0, 2.0, 1.0], backward_input=1.0, backward_weight=1.0)
    own_work, way_in, way_out = 8 * (2 + 2), 2, 2 * 2  # of stage 2, which all others have to wait for
    assert slow.duration >= own_work + way_in + way_out > play(one_f_one_b(4, 8)).duration


def test_a_pair_takes_the_time_of_both():
    schedule = written("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n")
    assert play(schedule).duration == 6.0


@pytest.mark.parametrize("name", ORDERS)
def test_what_is_held_is_what_the_schedule_says(name):
    schedule = ORDERS[name](4, 8)
    times = {"forward": 1.0, "backward_input": 1.0, "backward_weight": 1.0}
    timeline = simulate(schedule, **times, activation_bytes=100)
    for rank in timeline.ranks:
        instants = [span.start for span in timeline.for_rank(rank).spans]
        held = [timeline.holds(rank, instant).activations for instant in instants]
        assert max(held) == 100 * schedule.in_flight(rank)
    assert all(holding.end <= timeline.duration for holding in timeline.held)


@pytest.mark.parametrize("name", ORDERS)
def test_every_action_is_a_span_on_its_rank(name):
    schedule = ORDERS[name](4, 4)
    timeline = play(schedule)
    for rank, row in enumerate(schedule.actions):
        assert [span.name for span in timeline.for_rank(rank).spans] == list(map(str, row))
    kinds = {span.name.strip("0123456789"): span.kind for span in timeline.spans}
    known = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}
    assert kinds.items() <= known.items()


def test_a_schedule_that_hangs_gets_the_validators_sentence():
    with pytest.raises(ValueError, match="would hang: rank 0 at 0B0"):
        play(written("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"))


@pytest.mark.parametrize(
    "times, said",
    [
        ({"forward": -1.0}, "forward is -1.0; give one number of 0 or more"),
        ({"backward_weight": [1.0, 2.0]}, "one for each of the 4 virtual stages"),
        ({"send": float("nan")}, "send is nan"),
    ],
)
def test_bad_durations_get_a_sentence(times, said):
    with pytest.raises(ValueError, match=said):
        play(one_f_one_b(4, 4), **times)


@pytest.mark.parametrize("stages, microbatches, chunks", [(2, 9, 1), (4, 32, 1), (8, 64, 1), (4, 32, 2), (4, 40, 3)])
@pytest.mark.parametrize("ends", [1.0, 0.7, 1.3])
def test_a_long_pipeline_drawn_out_takes_as_long_as_one_played_whole(stages, microbatches, chunks, ends):
    forward = [ends, *[1.0] * (stages * chunks - 2), ends]
    backward = [2 * one for one in forward]
    whole = simulated_seconds(stages, microbatches, chunks, forward, backward)
    assert pipeline_seconds(stages, microbatches, chunks, forward, backward) == pytest.approx(whole, rel=0.03)
    assert closed_form_seconds(stages, microbatches, chunks, forward, backward) == pytest.approx(whole, rel=0.1)


@pytest.mark.parametrize("stages, microbatches, chunks", [(2, 3, 1), (4, 8, 1), (5, 2, 1), (2, 4, 3), (4, 8, 2)])
def test_seconds_without_spans_are_those_of_the_simulation(stages, microbatches, chunks):
    forward = [1.0 + 0.3 * (part % 3) for part in range(stages * chunks)]
    backward = [2.0 + 0.7 * (part % 2) for part in range(stages * chunks)]
    schedule = interleaved(stages * chunks, microbatches, chunks) if chunks > 1 else one_f_one_b(stages, microbatches)
    spans = play(schedule, forward=forward, backward_input=backward, backward_weight=0.0).spans
    assert simulated_seconds(stages, microbatches, chunks, forward, backward) == max(span.end for span in spans)


def test_equal_stages_have_the_published_bubble():
    """Narayanan et al. 2021, section 2.2: (p - 1) / (m v) of the ideal time."""
    for chunks in (1, 2):
        parts = [1 / chunks] * 4 * chunks
        took = pipeline_seconds(4, 16, chunks, parts, [2 * one for one in parts])
        assert took / (16 * 3) - 1 == pytest.approx(3 / 16 / chunks)
