"""A week that is played: what is kept and lost, by hand and against the closed form."""

import pytest

from helpers.predict.failures import META_RSC1, effective_time, mtbf, simulate_week, simulate_weeks

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
    monkeypatch.setattr("helpers.predict.failures.week._failures", lambda *_: (95.0, 112.0, 170.0))
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
def test_bad_input_is_a_sentence(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}, but"):
        simulate_week(**{**JOB, "interval": 600, name: value})
