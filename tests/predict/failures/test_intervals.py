"""Checkpoint intervals: the closed forms against the least of the loss, and a published failure rate."""

import pytest

from helpers.predict.failures import (
    availability_interval,
    daly_interval,
    device_mtbf,
    effective_time,
    expected_ettr,
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


@pytest.mark.parametrize(("mtbf", "minutes"), [(24 * 60, "117"), (6 * 60, "57"), (15, "9.1")])
def test_daly_s_own_examples(mtbf, minutes):
    """Daly 2006, figures 3 to 5: saves of 5 min, MTBF of 24 h, 6 h and 15 min; 117, 57 and 9.1 min."""
    best = daly_interval(5, mtbf)
    assert f"{best:.{len(minutes.partition('.')[2])}f}" == minutes
    kept = [effective_time(interval=best * factor, save=5, mtbf=mtbf, repair=10) for factor in (0.9, 1, 1.1)]
    assert kept[1] == max(kept)


def test_a_repair_makes_24_steps_of_23():
    """Changlan 2025 (Optimal Checkpointing Frequency): MTBI 6000 s, save 10 s, repair 600 s, steps of 15 s; Young 23.

    Saxena 2024, equation of the abstract: their interval holds the save as well.
    """
    work = availability_interval(10, 6000, 600)
    assert round(work / 15) == 24 and round(young_interval(10, 6000) / 15) == 23
    assert work + 10 == pytest.approx(10 + (2 * (6000 + 600) * 10 + 10**2) ** 0.5)


def test_the_ratio_of_meta_is_best_near_young_and_close_to_the_complete_form():
    """Kokolis 2025: E[ETTR], whose best interval they give as sqrt(2 w / (N r))."""
    job = {"save": 10, "mtbf": 1.8 * HOUR, "repair": 120}
    best = young_interval(10, 1.8 * HOUR)
    assert expected_ettr(interval=best, **job) > max(expected_ettr(interval=best * f, **job) for f in (0.8, 1.25))
    assert expected_ettr(interval=best, **job) == pytest.approx(effective_time(interval=best, **job), abs=0.005)
    assert expected_ettr(interval=360, save=0, mtbf=3600, repair=180) == pytest.approx(1 - (180 + 180) / 3600)
    assert expected_ettr(interval=9000, save=10, mtbf=3600) == 0


def test_a_job_that_never_reaches_a_save_keeps_nothing():
    assert effective_time(interval=1e7, save=10, mtbf=100) == 0.0


@pytest.mark.parametrize("value", [0, -1, float("nan"), True, "60"])
def test_bad_times_are_a_sentence(value):
    with pytest.raises(ValueError, match="save is"):
        young_interval(value, 1000)
    for share in (effective_time, expected_ettr):
        with pytest.raises(ValueError, match="interval is .*, but it must be above 0"):
            share(interval=value, save=10, mtbf=1000)
