"""Checkpoint intervals: the closed forms against the least of the loss, and a published failure rate."""

import pytest

from helpers.predict.time.reliability import (
    daly_interval,
    device_mtbf,
    expected_failures,
    job_mtbf,
    lost_share,
    young_interval,
)

HOUR = 3600.0


@pytest.mark.parametrize(("save", "mtbf"), [(60, 48.8 * HOUR), (5, 3 * HOUR), (300, 24 * HOUR)])
def test_young_loses_least(save, mtbf):
    best = young_interval(save, mtbf)
    least = lost_share(best, save, mtbf)
    assert all(lost_share(best * factor, save, mtbf) > least for factor in (0.5, 0.9, 1.1, 2))
    assert save / best == pytest.approx(best / (2 * mtbf))  # both costs are equal there


def test_four_times_the_devices_halve_the_interval():
    one, four = (young_interval(60, job_mtbf(50_000 * HOUR, n)) for n in (1000, 4000))
    assert one == pytest.approx(2 * four)


def test_daly_is_young_for_short_checkpoints_and_the_mtbf_for_long_ones():
    """Daly 2006: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d, and M from d = 2M on."""
    assert daly_interval(1, 1e9) == pytest.approx(young_interval(1, 1e9), rel=1e-4)
    assert daly_interval(200, 100) == daly_interval(500, 100) == 100
    assert daly_interval(50, 100) == pytest.approx(100 * (1 + 0.5 / 3 + 0.25 / 9) - 50)


def test_llama_3_failed_every_three_hours():
    """The Llama 3 Herd of Models, section 3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs."""
    one = device_mtbf(419, 16_384, 54 * 24 * HOUR)
    assert job_mtbf(one, 16_384) / HOUR == pytest.approx(3.09, abs=0.01)
    assert expected_failures(54 * 24 * HOUR, job_mtbf(one, 16_384)) == pytest.approx(419)


def test_restarts_cost_what_they_take():
    assert lost_share(600, 60, 10_000, 100) - lost_share(600, 60, 10_000) == pytest.approx(0.01)


@pytest.mark.parametrize("value", [0, -1, True, "60"])
def test_bad_times_are_a_sentence(value):
    with pytest.raises(ValueError, match="checkpoint_seconds is"):
        young_interval(value, 1000)
