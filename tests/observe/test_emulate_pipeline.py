"""A simulated pipeline that real ranks play: the same actions in the same order, about the same times."""

import pytest

from helpers.observe.emulate import MAX_RANKS, emulate_pipeline_step, larger_bubble
from helpers.predict.time.pipeline import simulate
from helpers.schedules import gpipe, interleaved, one_f_one_b, zb_h1

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


def test_more_ranks_than_a_machine_should_run_get_a_sentence():
    with pytest.raises(ValueError, match=f"64 ranks .* emulate 1 to {MAX_RANKS}"):
        emulate_pipeline_step(gpipe(64, 1), **TIMES)


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
