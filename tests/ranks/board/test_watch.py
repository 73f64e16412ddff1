"""The verdicts of the watch, on answers made by hand: no processes, no waiting."""

from dataclasses import replace
from multiprocessing import Pipe

import pytest

from helpers.ranks.board import watch as watch_module
from helpers.ranks.board.errors import RankStatus, WaitingOperation
from helpers.ranks.board.watch import RankState, Watch

TRAIN = [("train.py", 3, "train")]
NUMBERS = watch_module._numbers


@pytest.fixture
def watch():
    pipes = [Pipe() for _ in range(3)]
    watch = Watch([RankState(rank, kernel, pid=0) for rank, (kernel, _) in enumerate(pipes)])
    watch.processes = [process for _, process in pipes]  # the other ends, for answers that come when asked
    yield watch
    for ends in pipes:
        for end in ends:
            end.close()


def waits_for(*missing, frames=TRAIN, runnable=False):
    op = WaitingOperation(op="all_reduce", sequence=7, missing=missing)
    return RankStatus(frames=frames, runnable=runnable, waiting=[op], counters={"0": 7})


def answer(watch, rank, where, times=2, apart=1.0):
    for _ in range(times):
        watch.clock += apart
        watch.states[rank].take(("where", where, next(NUMBERS)), watch.clock)


def test_ranks_that_wait_for_one_that_finished_are_deadlocked(watch):
    watch.states[1].take(("done", "ok", b"", {"0": 6}, None), 0.0)
    answer(watch, 0, waits_for(1))
    answer(watch, 2, waits_for(1))
    assert watch.is_deadlocked()


def test_a_rank_that_computes_is_waited_for_however_long(watch):
    answer(watch, 0, waits_for(1), times=50)
    answer(watch, 2, waits_for(1), times=50)
    answer(watch, 1, RankStatus(frames=TRAIN, runnable=True), times=50)
    assert not watch.is_deadlocked()


def test_a_rank_that_sleeps_outside_torch_is_waited_for(watch):
    answer(watch, 0, waits_for(1), times=50)
    answer(watch, 2, waits_for(1), times=50)
    answer(watch, 1, RankStatus(frames=TRAIN, runnable=False), times=50)
    assert not watch.is_deadlocked()


def test_a_circle_of_waiting_ranks_is_deadlocked(watch):
    for rank in range(3):
        answer(watch, rank, waits_for((rank + 1) % 3))
    assert watch.is_deadlocked()


@pytest.mark.parametrize("place", ["distributed_c10d.py", "checkpoint/filesystem.py"])
def test_ranks_that_all_wait_in_making_a_group_are_deadlocked_and_those_that_write_a_file_are_not(watch, place):
    frames = [*TRAIN, (f"site-packages/torch/distributed/{place}", 9, "f")]
    for rank in range(3):
        answer(watch, rank, RankStatus(frames=frames, runnable=False), times=9)
    assert watch.is_deadlocked() == (place == "distributed_c10d.py")


GLOO = [*TRAIN, ("site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")]
APPLY = [*GLOO, (watch_module.__file__.replace("watch.py", "session.py"), 70, "apply")]


@pytest.mark.parametrize(
    ("frames", "cpu_share", "deadlocked"),
    [
        (GLOO, 0.0, True),
        (GLOO, 0.5, False),  # gloo's threads move data
        ([*GLOO, ("train.py", 20, "hook")], 0.0, False),  # torch calls the learner's code
        (APPLY, 0.0, False),  # a straggler on purpose
    ],
)
def test_a_wait_that_is_no_operation_counts_where_nothing_computes(watch, frames, cpu_share, deadlocked):
    watch.states[1].take(("done", "ok", b"", {}, None), 0.0)
    for second in range(9):
        for rank in (0, 2):
            where = RankStatus(frames=frames, runnable=False, cpu_seconds=cpu_share * second)
            answer(watch, rank, where, times=1, apart=0.5)
    assert watch.is_deadlocked() == deadlocked


def test_an_operation_that_everyone_issued_is_in_flight(watch):
    for rank in range(3):
        answer(watch, rank, waits_for())
    assert not watch.is_deadlocked()


def test_one_look_is_not_enough(watch):
    for rank in range(3):
        answer(watch, rank, waits_for((rank + 1) % 3), times=1)
    assert not watch.is_deadlocked()


def test_movement_starts_the_count_anew(watch):
    for rank in range(3):
        answer(watch, rank, waits_for((rank + 1) % 3))
    answer(watch, 0, replace(waits_for(1), frames=[("train.py", 4, "train")]), times=1)
    assert not watch.is_deadlocked()


def test_a_suspended_laptop_is_not_time_that_passed(watch, monkeypatch):
    monkeypatch.setattr(watch_module.time, "monotonic", lambda: watch._last + 3600.0)
    watch._tick()
    assert watch.clock <= watch_module.MAX_STEP


def old_answers_and_one_finished(watch):
    answer(watch, 0, waits_for(1))
    answer(watch, 2, waits_for(1))
    watch.states[1].take(("done", "ok", b"", {"0": 7}, None), 0.0)
    assert watch.is_deadlocked()


def test_a_deadlock_is_certain_when_new_answers_say_the_same(watch):
    old_answers_and_one_finished(watch)
    number = next(NUMBERS) + 1
    for rank in (0, 2):
        watch.processes[rank].send(("where", waits_for(1), number))
    assert watch.is_still_deadlocked()


def test_an_answer_to_an_earlier_question_proves_nothing(watch):
    old_answers_and_one_finished(watch)
    for rank in (0, 2):
        watch.processes[rank].send(("where", waits_for(1), next(NUMBERS)))
    assert not watch.is_still_deadlocked(limit=0.05)


def test_an_answer_to_a_question_of_an_earlier_task_is_no_answer(watch):
    number = next(NUMBERS)
    state = RankState(0, conn=None, pid=0)
    state.take(("where", waits_for(1), number), 0.0)
    assert state.where is None


def test_ranks_that_went_on_since_their_last_answer_are_not_deadlocked(watch):
    old_answers_and_one_finished(watch)
    number = next(NUMBERS) + 1
    watch.processes[0].send(("where", RankStatus(frames=TRAIN, runnable=True), number))
    watch.processes[2].send(("where", waits_for(1), number))
    assert not watch.is_still_deadlocked()


def test_ranks_that_finished_since_their_last_answer_are_not_deadlocked(watch):
    old_answers_and_one_finished(watch)
    for rank in (0, 2):
        watch.processes[rank].send(("done", "ok", b"", {"0": 7}, None))
    assert not watch.is_still_deadlocked()


def test_no_answer_proves_nothing(watch):
    old_answers_and_one_finished(watch)
    assert not watch.is_still_deadlocked(limit=0.05)


def test_ranks_that_have_all_finished_are_not_deadlocked(watch):
    for state in watch.states:
        state.take(("done", "ok", b"", {}, None), 0.0)
    assert not watch.is_deadlocked()


def test_ranks_meet_no_longer_than_all_of_them_can(watch):
    assert watch.wait_for_all(limit=0.05) == watch.states, "nobody has answered"
    watch.states[1].mark_dead()
    watch.receive = None  # the others wait for rank 1, and nobody for them
    assert watch.wait_for_all(limit=60) == [watch.states[1]]


def test_a_rank_on_its_way_to_its_wait_is_let_come_to_it(watch):
    """It has issued what another lacks, but stands a line before the wait: the report would name that line."""
    for state in watch.states[1:]:
        state.take(("done", "ok", b"", {"0": 6}, None), 0.0)
    line_before = [("train.py", 2, "train")]
    answers = [waits_for(1, frames=line_before, runnable=True)] + [waits_for(1)] * 40

    def poll():
        number = next(NUMBERS)
        watch.processes[0].send(("where", answers.pop(0), number))
        return number

    watch.poll = poll
    watch.settle_or_wait(0.5)
    assert watch.states[0].where.frames == TRAIN
    assert 0 < len(answers) < 40


@pytest.mark.parametrize("has_work", [False, True])
def test_an_old_answer_does_not_end_the_time_that_a_busy_rank_gets(watch, monkeypatch, has_work):
    """It waited for another rank when it answered last, and is too busy to answer now."""
    monkeypatch.setattr(watch_module, "has_runnable_thread", lambda pid: has_work)
    for state in watch.states[1:]:
        state.take(("done", "ok", b"", {"0": 6}, None), 0.0)
    answer(watch, 0, waits_for(1))
    start = watch.clock
    watch.settle_or_wait(0.2)
    most = 0.2 * watch_module.RUNNABLE_FACTOR
    assert watch.clock - start >= (most if has_work else 0.2)


@pytest.mark.timeout(20)
def test_a_rank_that_reads_nothing_does_not_make_the_kernel_wait(watch):
    for _ in range(5000):  # more than a pipe holds
        watch.poll()
    watch.announce_end()
