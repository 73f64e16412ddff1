"""Steps of which one part is divided: no rank ends before its share, and all wait for the part that one rank does."""

import os

import pytest

from helpers.chapters.scaling import _fastest, _take_cores, divided_steps, share_cores


def test_a_step_lasts_at_least_as_long_as_its_parts(ranks):
    shared = divided_steps(ranks, divided=0.08, serial=0.02)
    assert list(shared) == [1, 2, 4] and all(shared[n] >= 0.02 + 0.08 / n for n in shared)
    grown = divided_steps(ranks, divided=0.02, serial=0.01, counts=(1, 2), grows=True)
    assert min(grown.values()) >= 0.03


def test_every_rank_waits_for_what_one_does(ranks):
    assert min(ranks[:2].run(_fastest, 0.0, 0.05)) >= 0.04  # clocks start at one barrier


@pytest.mark.parametrize("wrong", [dict(divided=-1, serial=1), dict(divided=0, serial=0)])
def test_no_time_is_refused(ranks, wrong):
    with pytest.raises(ValueError, match="give seconds, and at least one above 0"):
        divided_steps(ranks, **wrong)


def in_one_core():
    if not hasattr(os, "sched_setaffinity"):
        return _take_cores(1)
    before = os.sched_getaffinity(0)
    try:
        return _take_cores(1)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux says on which cores a process computes")
def test_a_rank_takes_as_few_cores_as_it_is_told(ranks):
    assert ranks[:2].run(in_one_core) == [1, 1]
    with pytest.raises(ValueError, match="give at least 1"):
        share_cores(ranks, cores=0)
