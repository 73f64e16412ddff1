"""The explorer works without a front end: each dial moves what it should, and a run stands below the prediction."""

from dataclasses import replace

import pytest

from helpers.draw import Label, Line
from helpers.predict.time.pipeline import simulate
from helpers.schedules import ORDERS
from helpers.widgets import PipelineExplorer
from tests.widgets.explorers import turned


def explorer(**settings):
    return turned(PipelineExplorer(), **settings)


def bubble(**settings):
    return explorer(**settings).timeline.bubble_fraction


def test_the_same_bubble_and_less_memory():
    """The myth of the chapter: 1F1B does not have the smaller bubble."""
    gpipe, ours = (explorer(schedule=name, send=0, microbatches=16) for name in ("gpipe", "one_f_one_b"))
    assert gpipe.timeline.bubble_fraction == pytest.approx(ours.timeline.bubble_fraction)
    assert "16 micro-batches, 16.0 GB" in gpipe.sentence and "4 micro-batches, 4.00 GB" in ours.sentence


def test_more_micro_batches_less_bubble_more_ranks_more():
    assert bubble(microbatches=32) < bubble(microbatches=8) < bubble(microbatches=2)
    assert bubble(ranks=8) > bubble(ranks=4) > bubble(ranks=2)


def test_the_schedules_from_worst_to_best():
    worst_first = [bubble(schedule=name) for name in ("naive", "one_f_one_b", "interleaved", "zb_h1", "zb_h2")]
    assert worst_first == sorted(worst_first, reverse=True)


def test_chunks_share_a_ranks_layers():
    """The same work, a smaller bubble."""
    two, four = (explorer(schedule="interleaved", chunks=chunks, send=0) for chunks in (2, 4))
    assert two.timeline.busy(0) == pytest.approx(four.timeline.busy(0)) == pytest.approx(8 * 0.03)
    assert four.timeline.bubble_over_ideal == pytest.approx(two.timeline.bubble_over_ideal / 2) == pytest.approx(3 / 32)


def test_a_slow_rank_makes_the_others_wait():
    slow = explorer(slow=1)
    assert slow.timeline.duration > 1.5 * explorer().timeline.duration
    assert slow.timeline.busy(1) == pytest.approx(2 * slow.timeline.busy(0))


def test_the_sentence_names_both_conventions():
    assert explorer(send=0).sentence.startswith("Bubble 27.3% of the time (37.5% over ideal time); ")


def test_fewer_micro_batches_than_ranks_work_and_say_what_it_costs():
    shown = explorer(microbatches=2)
    assert shown.sentence.endswith("With fewer micro-batches than ranks some rank is always idle.")


@pytest.mark.parametrize("name", ORDERS)
def test_bars_carry_their_micro_batch(name):
    labels = [item.text for item in explorer(schedule=name, microbatches=4).scene.items if isinstance(item, Label)]
    assert {"0", "1", "2", "3"} <= set(labels) and "rank 3" in labels


def test_the_play_head_shows_what_is_held_at_an_instant():
    shown = explorer()
    assert shown.instant is None and "holds at most" in labels_of(shown)
    shown.step.value = 2
    assert 0 < shown.instant < 0.01 * shown.timeline.duration + 0.01 and "holds now" in labels_of(shown)
    assert any(isinstance(item, Line) and item.colour == "ink" for item in shown.scene.items)
    shown.step.value = shown.num_steps
    assert shown.instant < shown.timeline.duration


def labels_of(shown):
    return [item.text for item in shown.scene.items if isinstance(item, Label)]


def test_a_run_stands_below_and_is_kept_by_setting():
    calls = []

    def run(order, **times):
        calls.append(order.name)
        return replace(simulate(order, **times), source="emulated")

    shown = PipelineExplorer(run=run).run_now()
    assert "Emulated bubble 29.0%" in shown.sentence
    assert any("emulated on this machine" in label for label in labels_of(shown))
    shown.schedule.value = "gpipe"
    assert shown.emulated is None
    shown.schedule.value = "one_f_one_b"
    assert shown.emulated is not None and calls == ["one_f_one_b"]


def test_an_interrupted_run_becomes_a_notice():
    def stopped(order, **times):
        raise KeyboardInterrupt

    shown = PipelineExplorer(run=stopped).run_now()
    assert shown.failure == "The run was interrupted." and not shown.button.disabled
    with pytest.raises(ValueError, match="nothing to run; give it run=, such as emulate_pipeline_step"):
        PipelineExplorer().run_now()


def test_chunks_can_be_chosen_for_the_interleaved_schedule_alone():
    explorer = PipelineExplorer("interleaved")
    assert not explorer.chunks.disabled
    explorer.schedule.value = "gpipe"
    assert explorer.chunks.disabled
