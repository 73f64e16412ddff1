"""How often a job fails, when it should save, a simulated week, and what a checkpoint costs."""

from __future__ import annotations

import math
import random
from math import ceil

import pytest

from helpers.predict import failures
from helpers.predict.failures import (
    LLAMA3,
    META_RSC1,
    META_RSC2,
    availability_interval,
    checkpoint_bytes,
    daly_interval,
    device_mtbf,
    effective_time,
    expected_failures,
    job_mtbf,
    lost_gpu_hours,
    lost_share,
    mtbf,
    save_seconds,
    simulate_week,
    simulate_weeks,
    spares_needed,
    young_interval,
)
from helpers.specs import Plan

HOUR, DAY = 3600.0, 86_400.0


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


def test_a_job_that_never_reaches_a_save_keeps_nothing():
    assert effective_time(interval=1e7, save=10, mtbf=100) == 0.0


@pytest.mark.parametrize("value", [0, -1, float("nan"), True, "60"])
def test_bad_times_are_a_sentence(value):
    with pytest.raises(ValueError, match="save is"):
        young_interval(value, 1000)
    with pytest.raises(ValueError, match="interval is .*, but it must be above 0"):
        effective_time(interval=value, save=10, mtbf=1000)


def test_the_kinds_of_llama_3_add_up():
    """The Llama 3 Herd of Models, section 3.3.4, table 5: 419 unexpected interruptions, 148 faulty GPUs, 72 HBM3."""
    assert sum(LLAMA3.values()) == 419
    assert (LLAMA3["faulty GPU"], LLAMA3["GPU HBM3 memory"], LLAMA3["software bug"]) == (148, 72, 54)
    assert f"{54 * 86_400 / 419 / HOUR:.1f} h" == "3.1 h"
    assert META_RSC2 < 419 / 54 / 2048 < META_RSC1  # its nodes lie between those of Meta's two clusters


@pytest.mark.parametrize(("gpus", "hours"), [(16_384, "1.80"), (131_072, "0.23")])
def test_meta_projects_the_time_between_failures_to_larger_jobs(gpus, hours):
    """Kokolis 2025: 6.50 failures per thousand nodes and days; 1.8 h and 0.23 h."""
    assert f"{mtbf(nodes=gpus // 8, per_node_day=META_RSC1) / HOUR:.2f}" == hours
    assert mtbf(nodes=8, per_node_day=0.01) == pytest.approx(job_mtbf(100 * DAY, 8))


def test_so_many_spares_are_enough_that_often_and_one_fewer_is_not():
    """Counted: nodes fail at random moments and come back after two days; how many are away at once."""
    job, draw = {"nodes": 100, "per_node_day": 0.02, "away": 2 * DAY}, random.Random(0)
    spares = spares_needed(**job, probability=0.92)
    away = [sum(draw.expovariate(0.02) < 2 for _ in range(100)) for _ in range(1000)]  # failed in two days
    enough = [sum(count <= held for count in away) / len(away) for held in (spares, spares - 1)]
    assert enough[0] >= 0.92 > enough[1]
    assert spares_needed(**job | {"away": 0}) == 0 < spares < spares_needed(**job, probability=0.999)
    assert 745 < spares_needed(nodes=16_384, per_node_day=META_RSC1, away=7 * DAY) < 900  # the mean is 745


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: mtbf(nodes=0, per_node_day=0.1), "nodes is 0, but it must be a whole number of 1 or more"),
        (lambda: mtbf(nodes=8, per_node_day=float("nan")), "per_node_day is nan, but it must be above 0"),
        (lambda: spares_needed(nodes=8, per_node_day=0.1, away=-1), "away is -1, but it must be 0 or more"),
        (lambda: spares_needed(nodes=8, per_node_day=0.1, away=1, probability=1), "probability is 1, but it must lie"),
        (lambda: lost_gpu_hours(gpus=8, effective=1.1, seconds=1), "effective is 1.1, but it must be a share, from 0"),
    ],
)
def test_a_rate_that_cannot_be_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


BLOOM = 176_247_271_424  # parameters, of its model card


def test_bloom_weighs_two_point_three_terabytes():
    """BigScience 2022: 329GB of bf16 weights, 2.3TB with optimizer states; powers of two, rounded up."""
    assert ceil(10 * checkpoint_bytes(BLOOM) / 2**40) / 10 == 2.3 and ceil(BLOOM * 2 / 2**30) == 329
    assert checkpoint_bytes(10, Plan(precision="fp32", optimizer="sgd")) == 40  # no gradients


def test_published_times_of_saves():
    """Bekman 2024, Machine Learning Engineering: BLOOM in 40 s on 48 nodes, every 3 hours, 0.37 % of the time.

    Gemini (Wang 2023): MT-NLG over 20 Gb/s in 42 minutes; 12 bytes for each of 530e9 parameters.
    """
    bloom = [save_seconds(num_bytes=2.3e12, nodes=n, shared_bandwidth=2.3e12 / 40) for n in (1, 8, 48, 2048)]
    assert bloom == pytest.approx([40] * 4) and f"{bloom[2] / (3 * 3600):.2%}" == "0.37%"  # nodes do not help
    assert round(save_seconds(num_bytes=12 * 530e9, nodes=280, shared_bandwidth=20e9 / 8) / 60) == 42


def test_disks_of_many_nodes_are_faster_until_the_file_system_is_the_limit():
    both = {"num_bytes": 2.3e12, "disk_bandwidth": 5e9, "shared_bandwidth": 57.5e9}
    assert [save_seconds(nodes=n, **both) for n in (1, 8, 2048)] == pytest.approx([460, 57.5, 40])


def test_a_checkpoint_that_cannot_be_is_a_sentence():
    with pytest.raises(ValueError, match="got no bandwidth; give disk_bandwidth"):
        save_seconds(num_bytes=1, nodes=1)
    with pytest.raises(ValueError, match="disk_bandwidth is 0, but it must be above 0"):
        save_seconds(num_bytes=1, nodes=1, disk_bandwidth=0)


JOB = {"nodes": 2048, "per_node_day": META_RSC1, "save": 60.0, "repair": 600.0}


@pytest.mark.parametrize("interval", [300.0, 850.0, 3600.0])
def test_the_mean_of_many_weeks_is_the_closed_form(interval):
    closed = effective_time(interval=interval, save=60, repair=600, mtbf=mtbf(nodes=2048, per_node_day=META_RSC1))
    assert simulate_weeks(weeks=60, interval=interval, **JOB) == pytest.approx(closed, rel=0.01)


def test_a_job_that_never_saves_keeps_its_last_run_alone():
    job = {"nodes": 1, "per_node_day": 1, "save": 10, "repair": 60}
    week = simulate_week(interval=float("inf"), **job)
    assert [s.kind for s in week.stretches].count("kept") == 1 and week.stretches[-1].work > 0


def test_repairs_that_are_struck_begin_again():
    job = {"nodes": 8, "per_node_day": 10, "interval": 120, "save": 5, "repair": 600}
    closed = effective_time(interval=120, save=5, repair=600, mtbf=mtbf(nodes=8, per_node_day=10))
    assert simulate_weeks(weeks=40, **job) == pytest.approx(closed, rel=0.02)


def test_a_week_by_hand(monkeypatch):
    """Failures at 95 s, at 112 s in the repair, and at 170 s: 40 s of work and a save of 10 make a cycle of 50."""
    monkeypatch.setattr("helpers.predict.failures._failures", lambda *_: (95.0, 112.0, 170.0))
    week = simulate_week(nodes=1, per_node_day=1, interval=40, save=10, repair=20, seconds=200)
    said = [(stretch.kind, stretch.start, stretch.end, stretch.work) for stretch in week.stretches]
    assert said == [
        ("kept", 0, 50, 40),
        ("lost", 50, 95, 0),  # 40 s of work, and 5 of the save that did not end
        ("repair", 95, 132, 0),
        ("lost", 132, 170, 0),
        ("repair", 170, 190, 0),
        ("kept", 190, 200, 10),  # not saved, and not lost
    ]
    assert week.shares == pytest.approx({"work": 0.25, "saves": 0.05, "lost": 83 / 200, "repair": 57 / 200})


def test_stretches_follow_each_other_and_the_seed_decides():
    week = simulate_week(interval=600, **JOB)
    ends = [stretch.end for stretch in week.stretches]
    assert [stretch.start for stretch in week.stretches] == [0, *ends[:-1]] and ends[-1] == week.seconds
    assert sum(week.shares.values()) == pytest.approx(1)
    assert week == simulate_week(interval=600, **JOB) != simulate_week(interval=600, seed=1, **JOB)


@pytest.mark.parametrize(("name", "value"), [("interval", 0), ("save", -1), ("nodes", 2.0)])
def test_a_week_that_cannot_be_is_a_sentence(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}, but"):
        simulate_week(**{**JOB, "interval": 600, name: value})


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
