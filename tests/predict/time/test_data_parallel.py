"""The simulated step of DataParallel: hand-worked times, and bytes equal to the predicted traffic."""

import pytest

from helpers.predict.time.data_parallel import DataParallelStep, simulate_data_parallel_step
from helpers.predict.traffic.data_parallel import data_parallel_traffic, master_link_bytes
from helpers.specs import Link

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


@pytest.mark.parametrize("wrong", [{"num_devices": 0}, {"forward_seconds": -1.0}, {"parameter_bytes": float("nan")}])
def test_bad_numbers_get_a_sentence(wrong):
    with pytest.raises(ValueError, match="expected"):
        DataParallelStep(**{"num_devices": 2, **STEP, **wrong})
