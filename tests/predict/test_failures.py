"""How often a job fails, when it should save, a simulated week, and what a checkpoint costs."""

from __future__ import annotations

import math
import random
from math import ceil

import pytest

from helpers.predict import failures
from helpers.specs import Plan

HOUR, DAY = 3600.0, 86_400.0


@pytest.mark.parametrize(("save", "mtbf"), [(60, 48.8 * HOUR), (5, 3 * HOUR), (300, 24 * HOUR)])
def test_young_loses_least(save, mtbf):
    best = failures.young_interval(save, mtbf)
    least = failures.lost_share(best, save, mtbf)
    assert all(failures.lost_share(best * factor, save, mtbf) > least for factor in (0.5, 0.9, 1.1, 2))
    assert save / best == pytest.approx(best / (2 * mtbf))  # both costs are equal there


def test_daly_is_young_for_short_checkpoints_and_the_mtbf_for_long_ones():
    """Daly 2006: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d, and M from d = 2M on."""
    assert failures.daly_interval(1, 1e9) == pytest.approx(failures.young_interval(1, 1e9), rel=1e-4)
    assert failures.daly_interval(200, 100) == failures.daly_interval(500, 100) == 100
    assert failures.daly_interval(50, 100) == pytest.approx(100 * (1 + 0.5 / 3 + 0.25 / 9) - 50)


def test_llama_3_failed_every_three_hours():
    """The Llama 3 Herd of Models, section 3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs."""
    one = failures.device_mtbf(419, 16_384, 54 * 24 * HOUR)
    assert failures.job_mtbf(one, 16_384) / HOUR == pytest.approx(3.09, abs=0.01)
    assert failures.expected_failures(54 * 24 * HOUR, failures.job_mtbf(one, 16_384)) == pytest.approx(419)


@pytest.mark.parametrize(("mtbf", "minutes"), [(24 * 60, "117"), (6 * 60, "57"), (15, "9.1")])
def test_daly_s_own_examples(mtbf, minutes):
    """Daly 2006, figures 3 to 5: saves of 5 min, MTBF of 24 h, 6 h and 15 min; 117, 57 and 9.1 min."""
    best = failures.daly_interval(5, mtbf)
    assert f"{best:.{len(minutes.partition('.')[2])}f}" == minutes
    kept = [failures.effective_time(interval=best * factor, save=5, mtbf=mtbf, repair=10) for factor in (0.9, 1, 1.1)]
    assert kept[1] == max(kept)


def test_a_repair_makes_24_steps_of_23():
    """Changlan 2025 (Optimal Checkpointing Frequency): MTBI 6000 s, save 10 s, repair 600 s, steps of 15 s; Young 23.

    Saxena 2024, equation of the abstract: their interval holds the save as well.
    """
    work = failures.availability_interval(10, 6000, 600)
    assert round(work / 15) == 24 and round(failures.young_interval(10, 6000) / 15) == 23
    assert work + 10 == pytest.approx(10 + (2 * (6000 + 600) * 10 + 10**2) ** 0.5)


def test_a_job_that_never_reaches_a_save_keeps_nothing():
    assert failures.effective_time(interval=1e7, save=10, mtbf=100) == 0.0


@pytest.mark.parametrize("value", [0, -1, float("nan"), True, "60"])
def test_bad_times_are_a_sentence(value):
    with pytest.raises(ValueError, match="save is"):
        failures.young_interval(value, 1000)
    with pytest.raises(ValueError, match="interval is .*, but it must be above 0"):
        failures.effective_time(interval=value, save=10, mtbf=1000)


def test_the_kinds_of_llama_3_add_up():
    """The Llama 3 Herd of Models, section 3.3.4, table 5: 419 unexpected interruptions, 148 faulty GPUs, 72 HBM3."""
    assert sum(failures.LLAMA3.values()) == 419
    kinds = ("faulty GPU", "GPU HBM3 memory", "software bug")
    assert [failures.LLAMA3[kind] for kind in kinds] == [148, 72, 54]
    assert failures.META_RSC2 < 419 / 54 / 2048 < failures.META_RSC1  # its nodes lie between Meta's two clusters


@pytest.mark.parametrize(("gpus", "hours"), [(16_384, "1.80"), (131_072, "0.23")])
def test_meta_projects_the_time_between_failures_to_larger_jobs(gpus, hours):
    """Kokolis 2025: 6.50 failures per thousand nodes and days; 1.8 h and 0.23 h."""
    assert f"{failures.mtbf(nodes=gpus // 8, per_node_day=failures.META_RSC1) / HOUR:.2f}" == hours
    assert failures.mtbf(nodes=8, per_node_day=0.01) == pytest.approx(failures.job_mtbf(100 * DAY, 8))


def test_so_many_spares_are_enough_that_often_and_one_fewer_is_not():
    """Counted: nodes fail at random moments and come back after two days; how many are away at once."""
    job, draw = {"nodes": 100, "per_node_day": 0.02, "away": 2 * DAY}, random.Random(0)
    spares = failures.spares_needed(**job, probability=0.92)
    away = [sum(draw.expovariate(0.02) < 2 for _ in range(100)) for _ in range(1000)]  # failed in two days
    enough = [sum(count <= held for count in away) / len(away) for held in (spares, spares - 1)]
    assert enough[0] >= 0.92 > enough[1]
    assert failures.spares_needed(**job | {"away": 0}) == 0 < spares < failures.spares_needed(**job, probability=0.999)
    llama = failures.spares_needed(nodes=16_384, per_node_day=failures.META_RSC1, away=7 * DAY)
    assert 745 < llama < 900  # the mean is 745


BLOOM = 176_247_271_424  # parameters, of its model card


def test_bloom_weighs_two_point_three_terabytes():
    """BigScience 2022: 329GB of bf16 weights, 2.3TB with optimizer states; powers of two, rounded up."""
    assert ceil(10 * failures.checkpoint_bytes(BLOOM) / 2**40) / 10 == 2.3 and ceil(BLOOM * 2 / 2**30) == 329
    assert failures.checkpoint_bytes(10, Plan(precision="fp32", optimizer="sgd")) == 40  # no gradients


def test_published_times_of_saves():
    """Bekman 2024, Machine Learning Engineering: BLOOM in 40 s on 48 nodes, every 3 hours, 0.37 % of the time.

    Gemini (Wang 2023): MT-NLG over 20 Gb/s in 42 minutes; 12 bytes for each of 530e9 parameters.
    """
    bloom = [failures.save_seconds(num_bytes=2.3e12, nodes=n, shared_bandwidth=2.3e12 / 40) for n in (1, 8, 48, 2048)]
    assert bloom == pytest.approx([40] * 4) and f"{bloom[2] / (3 * 3600):.2%}" == "0.37%"  # nodes do not help
    assert round(failures.save_seconds(num_bytes=12 * 530e9, nodes=280, shared_bandwidth=20e9 / 8) / 60) == 42


def test_disks_of_many_nodes_are_faster_until_the_file_system_is_the_limit():
    both = {"num_bytes": 2.3e12, "disk_bandwidth": 5e9, "shared_bandwidth": 57.5e9}
    assert [failures.save_seconds(nodes=n, **both) for n in (1, 8, 2048)] == pytest.approx([460, 57.5, 40])


JOB = {"nodes": 2048, "per_node_day": failures.META_RSC1, "save": 60.0, "repair": 600.0}


@pytest.mark.parametrize("interval", [300.0, 850.0, 3600.0])
def test_the_mean_of_many_weeks_is_the_closed_form(interval):
    mtbf = failures.mtbf(nodes=2048, per_node_day=failures.META_RSC1)
    closed = failures.effective_time(interval=interval, save=60, repair=600, mtbf=mtbf)
    assert failures.simulate_weeks(weeks=60, interval=interval, **JOB) == pytest.approx(closed, rel=0.01)


def test_a_job_that_never_saves_keeps_its_last_run_alone():
    job = {"nodes": 1, "per_node_day": 1, "save": 10, "repair": 60}
    week = failures.simulate_week(interval=float("inf"), **job)
    assert [s.kind for s in week.stretches].count("kept") == 1 and week.stretches[-1].work > 0


def test_repairs_that_are_struck_begin_again():
    job = {"nodes": 8, "per_node_day": 10, "interval": 120, "save": 5, "repair": 600}
    closed = failures.effective_time(interval=120, save=5, repair=600, mtbf=failures.mtbf(nodes=8, per_node_day=10))
    assert failures.simulate_weeks(weeks=40, **job) == pytest.approx(closed, rel=0.02)


def test_a_week_by_hand(monkeypatch):
    """Failures at 95 s, at 112 s in the repair, and at 170 s: 40 s of work and a save of 10 make a cycle of 50."""
    monkeypatch.setattr("helpers.predict.failures._failures", lambda *_: (95.0, 112.0, 170.0))
    week = failures.simulate_week(nodes=1, per_node_day=1, interval=40, save=10, repair=20, seconds=200)
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
    week = failures.simulate_week(interval=600, **JOB)
    ends = [stretch.end for stretch in week.stretches]
    assert [stretch.start for stretch in week.stretches] == [0, *ends[:-1]] and ends[-1] == week.seconds
    assert sum(week.shares.values()) == pytest.approx(1)
    assert week == failures.simulate_week(interval=600, **JOB) != failures.simulate_week(interval=600, seed=1, **JOB)


def test_spares_are_counted_up_to_the_last_digit_of_the_probability():
    assert failures.spares_needed(nodes=2048, per_node_day=6.5e-3, away=1e6, probability=math.nextafter(1, 0)) > 200


WEEK = dict(nodes=8, per_node_day=0.01, interval=100, save=10, repair=60)
SPARES = dict(nodes=8, per_node_day=0.01, away=3600.0)
BAD = {  # the sentence, and what is asked
    "nodes is 0, but it must be a whole number of 1 or more": lambda: failures.mtbf(nodes=0, per_node_day=0.1),
    "per_node_day is nan, but it must be above 0": lambda: failures.mtbf(nodes=8, per_node_day=math.nan),
    "effective is 1.1, but it must be a share, from 0": lambda: failures.lost_gpu_hours(
        gpus=8, effective=1.1, seconds=1
    ),
    "effective is None": lambda: failures.lost_gpu_hours(gpus=8, effective=None, seconds=10),
    "seconds is '5'": lambda: failures.expected_failures("5", mtbf=5.0),
    "mtbf is inf": lambda: failures.effective_time(interval=100, save=10, mtbf=math.inf),
    "got no bandwidth; give disk_bandwidth": lambda: failures.save_seconds(num_bytes=1, nodes=1),
    "disk_bandwidth is 0, but": lambda: failures.save_seconds(num_bytes=1, nodes=1, disk_bandwidth=0),
    "away is -1, but it must be 0 or more": lambda: failures.spares_needed(**SPARES | {"away": -1}),
    "probability is 1, but it must lie": lambda: failures.spares_needed(**SPARES, probability=1),
    "probability is '5', .* a share": lambda: failures.spares_needed(**SPARES, probability="5"),
    "away is inf, .* finite": lambda: failures.spares_needed(**SPARES | {"away": math.inf}),
    "away at once": lambda: failures.spares_needed(**SPARES | {"away": 1e300}),
    "per_node_day is inf, .* finite": lambda: failures.spares_needed(**SPARES | {"per_node_day": math.inf}),
    "interval is 0, but": lambda: failures.simulate_week(**WEEK | {"interval": 0}),
    "save is -1, but": lambda: failures.simulate_week(**WEEK | {"save": -1}),
    "nodes is 2.0, but": lambda: failures.simulate_week(**WEEK | {"nodes": 2.0}),
    "save is inf, .* finite": lambda: failures.simulate_week(**WEEK | {"save": math.inf}),
    "seconds is inf, .* finite": lambda: failures.simulate_week(**WEEK, seconds=math.inf),
    "too many to be played": lambda: failures.simulate_week(**WEEK | {"per_node_day": 1e308}),
    "too many to be played|finite": lambda: failures.simulate_week(**WEEK | {"nodes": 10**9}),
    "more digits": lambda: failures.simulate_week(**WEEK | {"per_node_day": 10**400}),
}


@pytest.mark.parametrize("sentence", BAD)
def test_what_cannot_be_is_a_sentence(sentence):
    with pytest.raises(ValueError, match=sentence):
        BAD[sentence]()
