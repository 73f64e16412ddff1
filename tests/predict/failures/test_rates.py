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
    """The Llama 3 Herd of Models, section 3.3.4, table 5: 419 unexpected interruptions, 148 faulty GPUs, 72 HBM3."""
    assert sum(LLAMA3.values()) == 419
    assert (LLAMA3["faulty GPU"], LLAMA3["GPU HBM3 memory"], LLAMA3["software bug"]) == (148, 72, 54)
    assert f"{LLAMA3_SECONDS / 419 / HOUR:.1f} h" == "3.1 h" and LLAMA3_GPUS // 8 == 2048
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
def test_bad_input_is_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
