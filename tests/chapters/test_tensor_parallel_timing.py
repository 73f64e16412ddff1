"""Tensor parallel layers that real ranks play come out as predicted: the same messages, the same share of them."""

import pytest

from helpers.chapters.tensor_parallel_timing import (
    LayerTimes,
    emulate_columns,
    emulate_layers,
    simulate_columns,
    waiting_share,
)
from helpers.specs import GPUS, LINKS, PRESETS, Link

LAYERS = LayerTimes(num_ranks=8, link=Link(latency=1e-4, bandwidth=1e9), compute=(0.006, 0.014), message=10**7)


def names(timeline, lane):
    spans = sorted((one for one in timeline.for_rank(0).spans if one.lane == lane), key=lambda one: one.start)
    return [(one.kind, one.name) for one in spans]


def shortest(play):
    """Of three plays: a busy machine only ever adds time."""
    return min((play() for _ in range(3)), key=lambda one: one.duration)


def test_a_layer_waits_four_times_and_its_share_is_that_of_the_whole_model():
    one = LayerTimes.of(PRESETS["llama3-70b"], GPUS["H100"], LINKS["NVLink 4"], 8)
    assert (
        one.waiting_share
        == pytest.approx(waiting_share(one.busy + 4 * one.send, one.busy))
        == pytest.approx(0.1265, abs=1e-4)
    )
    assert one.compute[1] > 2 * one.compute[0]  # the MLP is the larger half


@pytest.mark.slow
def test_two_ranks_stand_for_eight_and_nothing_is_faster_than_the_model():
    """A mistake of scale would be off by a factor of 2 or more."""
    predicted, played = LAYERS.busy + 4 * LAYERS.send, shortest(lambda: emulate_layers(LAYERS))
    order = [("forward", "att"), ("forward", "MLP"), ("backward", "MLP"), ("backward", "att")]
    assert names(played, "compute") == order
    assert len(names(played, "communication")) == 4 and played.source == "emulated"
    assert 0.98 * predicted < played.duration < 2 * predicted


@pytest.mark.parametrize(("overlap", "seconds"), [(False, 0.105), (True, 0.075)])
def test_at_most_the_product_of_the_weight_hides_a_message(overlap, seconds):
    step = dict(layers=3, compute=0.010, send=0.015, title="")
    predicted, played = simulate_columns(overlap, **step), shortest(lambda: emulate_columns(overlap, **step))
    assert predicted.duration == pytest.approx(seconds)
    assert 0.98 * seconds < played.duration < 2 * seconds
