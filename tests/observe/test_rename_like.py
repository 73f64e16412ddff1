"""A run told as its prediction: the same names, lanes and memory, the run's own times."""

import pytest

from helpers.observe.timeline import rename_like
from helpers.predict.time.data_parallel import BackwardPass, simulate_ddp_step
from helpers.records import Span, Timeline
from helpers.specs import Link

BACKWARD = BackwardPass(names=("layer 1", "layer 0"), num_bytes=(400, 200), seconds=(2.0, 1.0), forward_seconds=1.5)
PREDICTED = simulate_ddp_step(BACKWARD, link=Link(latency=0.1, bandwidth=1e3), world_size=2, strategy="naive")


def span(name, kind, start, end, rank=0, num_bytes=0):
    lane = "communication" if kind == "communication" else "compute"
    return Span(rank=rank, lane=lane, name=name, kind=kind, start=start, end=end, num_bytes=num_bytes)


def recorded(rank):
    """Parts named by their place; the second message is handed over while the first is under way."""
    return [
        span("0", "forward", 10, 11, rank), span("1", "forward", 11, 12, rank),
        span("1", "backward", 12, 14, rank), span("0", "backward", 14, 15, rank),
        span("all_reduce", "communication", 14, 16, rank, 400), span("all_reduce", "communication", 15, 17, rank, 200),
    ]  # fmt: skip


RUN = Timeline(spans=tuple(recorded(0) + recorded(1)), source="emulated", title="a run")


def test_the_names_are_the_predictions_and_the_times_the_runs():
    told = rename_like(RUN, PREDICTED)
    compute = [(one.name, one.start, one.end) for one in told.for_rank(1).spans if one.lane == "compute"]
    assert compute == [("forward", 0, 2), ("layer 1", 2, 4), ("layer 0", 4, 5)]
    assert {one.name for one in told.spans} == {one.name for one in PREDICTED.spans}
    assert (told.source, told.title, told.duration) == ("emulated", "a run", 7)


def test_messages_share_one_lane_as_in_the_prediction():
    first, second = (one for one in rename_like(RUN, PREDICTED).for_rank(0).spans if one.lane == "communication")
    assert (first.start, first.end) == (4, 6) and (second.start, second.end) == (6, 7)


def test_a_rank_holds_what_was_predicted_from_when_it_was_ready():
    told = rename_like(RUN, PREDICTED)
    assert [told.holds(1, instant).gradients for instant in (1, 4.5, 6)] == [0, 400, 600]
    assert told.holds(0, 1).parameters == PREDICTED.holds(0, 1).parameters == 600


def test_another_steps_prediction_gets_a_sentence():
    other = simulate_ddp_step(
        BackwardPass(names=("a",), num_bytes=(4,), seconds=(1.0,)), link=Link(latency=0, bandwidth=1), world_size=2
    )
    with pytest.raises(ValueError, match="2 backward spans on a rank and the prediction 1"):
        rename_like(RUN, other)
