"""Failures as they were published, the time between them on more nodes, spares, GPU-hours, and bad input."""

import random

import pytest

from helpers.predict.failures import (
    LLAMA3,
    LLAMA3_GPUS,
    LLAMA3_SECONDS,
    META_RSC1,
    META_RSC2,
    job_mtbf,
    lost_gpu_hours,
    mtbf,
    spares_needed,
)

HOUR, DAY = 3600.0, 86_400.0


def test_the_kinds_of_llama_3_add_up():
    """The Llama 3 Herd of Models, section 3.3.4, table 5: 419 unexpected, 148 and 72 of them GPUs and their memory."""
    assert sum(LLAMA3.values()) == 419
    assert max(LLAMA3, key=LLAMA3.get) == "faulty GPU" and LLAMA3["GPU HBM3 memory"] == 72
    gpus = sum(count for kind, count in LLAMA3.items() if "GPU" in kind) + LLAMA3["silent data corruption"]
    assert f"{gpus / 419:.1%}" == "64.0%"  # of the counts; the text's 58.7 % adds up percentages that do not
    assert f"{LLAMA3_SECONDS / 419 / HOUR:.1f} h" == "3.1 h" and LLAMA3_GPUS // 8 == 2048


@pytest.mark.parametrize(("gpus", "hours"), [(16_384, "1.8"), (131_072, "0.23")])
def test_meta_projects_the_time_between_failures_to_larger_jobs(gpus, hours):
    """Kokolis 2025, section III: 6.50 failures per thousand nodes and days; 1.8 h and 0.23 h."""
    between = mtbf(nodes=gpus // 8, per_node_day=META_RSC1) / HOUR
    assert f"{between:.{len(hours) - 2}f}" == hours
    assert META_RSC2 < 419 / 54 / 2048 < META_RSC1  # Llama 3's nodes lie between the two clusters'


def test_the_time_between_failures_is_one_node_s_divided_by_their_number():
    one = mtbf(nodes=1, per_node_day=0.01)
    assert one == 100 * DAY and mtbf(nodes=8, per_node_day=0.01) == pytest.approx(job_mtbf(one, 8))


def test_so_many_spares_are_enough_that_often_and_one_fewer_is_not():
    """Counted: nodes fail at random moments and come back after two days; how many are away at once."""
    job = {"nodes": 100, "per_node_day": 0.02}
    spares = spares_needed(**job, away=2 * DAY, probability=0.92)
    draw = random.Random(0)
    away = [sum(draw.expovariate(0.02) < 2 for _ in range(100)) for _ in range(1000)]  # failed in two days
    enough = [sum(count <= held for count in away) / len(away) for held in (spares, spares - 1)]
    assert enough[0] >= 0.92 > enough[1]
    assert spares_needed(**job, away=0) == 0 < spares < spares_needed(**job, away=2 * DAY, probability=0.999)
    assert spares_needed(nodes=16_384, per_node_day=META_RSC1, away=7 * DAY) > 745  # more than the mean


def test_gpu_hours_are_those_that_left_nothing():
    assert lost_gpu_hours(gpus=16_384, effective=0.9, seconds=54 * DAY) == pytest.approx(16_384 * 54 * 24 * 0.1)
    assert lost_gpu_hours(gpus=8, effective=1, seconds=HOUR) == 0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: mtbf(nodes=0, per_node_day=0.1), "nodes is 0, but it must be a whole number of 1 or more"),
        (lambda: mtbf(nodes=8, per_node_day=0), "per_node_day is 0, but it must be above 0"),
        (lambda: mtbf(nodes=8, per_node_day=float("nan")), "per_node_day is nan"),
        (lambda: spares_needed(nodes=8, per_node_day=0.1, away=-1), "away is -1, but it must be 0 or more"),
        (lambda: spares_needed(nodes=8, per_node_day=0.1, away=1, probability=1), "probability is 1, but it must lie"),
        (lambda: lost_gpu_hours(gpus=8, effective=1.1, seconds=1), "effective is 1.1, but a share lies between"),
    ],
)
def test_bad_input_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
