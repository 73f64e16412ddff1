"""Copies die at every moment and come back; the weights are those of one process on exactly these samples."""

from __future__ import annotations

import random
from dataclasses import replace

import psutil
import pytest

from helpers.elastic import agent, healing
from helpers.elastic.healing import ReplicaSettings, train_replicas


@pytest.fixture
def pids(monkeypatch):
    """Of all processes that a run starts."""
    found, process = set(), agent.RankProcess

    def noted(rank, conn, pid, on_report):
        found.add(pid)
        return process(rank, conn, pid)

    monkeypatch.setattr(agent, "RankProcess", noted)
    return found


def by_step(found) -> dict[int, tuple[int, ...]]:
    return {one.step: one.members for one in found.rounds if one.done}


def test_three_go_on_and_the_fourth_is_healed_from_live_weights(pids):
    found = train_replicas(copies=4, steps=6, kill={2: 2}, back={2: 4})
    assert found.check_equal().startswith("equal: 38 tensors x 4 ranks")
    all_four, three = (0, 1, 2, 3), (0, 1, 3)
    assert by_step(found) == {0: all_four, 1: all_four, 2: three, 3: three, 4: all_four, 5: all_four}
    assert [one.samples for one in found.rounds if one.done] == [16, 16, 12, 12, 16, 16]
    assert [(one.step, one.behind, one.source) for one in found.rounds if one.behind] == [(4, (2,), 0)]
    assert [one.step for one in found.rounds if not one.done] == [2], "the step in which it died was done again"
    assert len(pids) == 5 and not any(map(psutil.pid_exists, pids))


def test_shared_rows_leave_the_curve_as_it_was():
    undisturbed = train_replicas(copies=3, steps=4)
    disturbed = train_replicas(copies=3, steps=4, kill={0: 1}, back={0: 3}, share="all")
    assert disturbed.losses == pytest.approx(undisturbed.losses, rel=1e-12)
    assert disturbed.check_equal() and {one.source for one in disturbed.rounds if one.behind} == {1}


@pytest.mark.parametrize("moment", ["meet", "after"])
def test_it_may_die_before_all_meet_and_after_its_share_is_sent(moment):
    found = train_replicas(copies=3, steps=3, kill={1: 1}, moment=moment)
    assert found.check_equal().startswith("equal: 38 tensors x 2 ranks")
    assert by_step(found)[2] == (0, 2)


def test_one_that_never_connects_is_given_up():
    found = train_replicas(copies=3, steps=2, kill={1: 0}, moment="meet", limit=2.0)
    assert found.check_equal() and by_step(found) == {0: (0, 2), 1: (0, 2)}


def test_the_verdict_sees_a_step_of_other_samples_and_copies_that_differ():
    found = train_replicas(copies=2, steps=2)
    first, second = found.rounds
    with pytest.raises(AssertionError, match="losses differs"):
        replace(found, rounds=(replace(first, members=(0,)), second)).check_equal()
    with pytest.raises(AssertionError, match="after step 1 the replicas' weights differ"):
        replace(found, rounds=(replace(first, digests=("a", "b")), second)).check_equal()


def test_what_a_copy_raises_is_raised_here_and_all_processes_end(pids, monkeypatch):
    monkeypatch.setattr(healing, "run_replica", broken)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        train_replicas(copies=2, steps=2)
    assert len(pids) == 2 and not any(map(psutil.pid_exists, pids))


def broken(*_):
    return 1 / 0


@pytest.mark.slow
def test_copies_die_and_return_at_random(seed):
    dice = random.Random(seed)
    for _ in range(20):
        kill = {copy: dice.randrange(8) for copy in dice.sample(range(4), dice.randint(1, 3))}
        back = {copy: dice.randint(step + 1, 9) for copy, step in kill.items() if step < 8 and dice.random() < 0.7}
        said = dict(steps=10, kill=kill, back=back, moment=dice.choice(("meet", "sum", "after")), limit=3.0)
        assert train_replicas(**said, share=dice.choice(("fewer", "all"))).check_equal(), ReplicaSettings(**said)
