"""What has no end is refused before it is counted through, and what is no number before it is calculated with."""

import math

import pytest

from helpers.predict import failures

WEEK = dict(nodes=8, per_node_day=0.01, interval=100, save=10, repair=60)


@pytest.mark.parametrize(
    "said", [{"per_node_day": math.inf}, {"per_node_day": 1e308}, {"seconds": math.inf}, {"save": math.inf},
             {"nodes": 10**9}, {"per_node_day": 10**400}],
)  # fmt: skip
def test_a_week_without_end_is_not_played(said):
    with pytest.raises(ValueError, match="finite|too many to be played|more digits"):
        failures.simulate_week(**WEEK | said)


@pytest.mark.parametrize(
    "said", [{"away": math.inf}, {"away": 1e300}, {"per_node_day": math.inf}, {"probability": "5"}]
)
def test_spares_for_what_has_no_end_are_refused(said):
    with pytest.raises(ValueError, match="finite|away at once|a share"):
        failures.spares_needed(**{"nodes": 8, "per_node_day": 0.01, "away": 3600.0} | said)


def test_spares_are_counted_up_to_the_last_digit_of_the_probability():
    assert failures.spares_needed(nodes=2048, per_node_day=6.5e-3, away=1e6, probability=math.nextafter(1, 0)) > 200


def test_what_is_no_number_is_named():
    with pytest.raises(ValueError, match="seconds is '5'"):
        failures.expected_failures("5", mtbf=5.0)
    with pytest.raises(ValueError, match="effective is None"):
        failures.lost_gpu_hours(gpus=8, effective=None, seconds=10)
    with pytest.raises(ValueError, match="mtbf is inf"):
        failures.effective_time(interval=100, save=10, mtbf=math.inf)
