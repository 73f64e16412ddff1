"""How an operation ends before its time: from outside, by a timeout, by an interrupt, with its group.

Each case lets the absent rank come afterwards, so that the world stays whole for the next test.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import threading
import time
from ast import literal_eval
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from helpers.ranks import RankError
from helpers.ranks.wire import gloo, wire
from helpers.ranks.wire.gloo import Waiters
from helpers.ranks.wire.work import Signature, WireError, WireWork
from tests.ranks.wire.test_pending import side_channel


def start(form, rank):
    """Something on rank 0 that waits for rank 1, and a function that waits for it."""
    x = torch.ones(2)
    if form == "recv":
        return dist.irecv(x, 1).wait
    if form == "send":
        return dist.isend(x, 1).wait
    if form == "recv from any":
        return dist.irecv(x).wait
    if form == "reduce_scatter":
        return (
            dist.reduce_scatter_single(x, torch.ones(4), async_op=True).wait if new_names() else reduce_scatter_base(x)
        )
    work = dist.all_reduce(x, async_op=True)
    futures = {"future": work.get_future, "then": lambda: work.get_future().then(lambda f: f.value())}
    return futures[form]().wait if form in futures else work.wait


def new_names():
    return hasattr(dist, "reduce_scatter_single")


def reduce_scatter_base(x):
    return dist.reduce_scatter_tensor(x, torch.ones(4), async_op=True).wait


def answer(form, rank):
    """What rank 1 does so that rank 0's operation completes inside gloo."""
    x = torch.ones(2)
    if form in ("recv", "recv from any"):
        dist.send(x, 0)
    elif form == "send":
        dist.recv(x, 0)
    else:
        start(form, rank)()


IN_PYTHON, IN_GLOO = ["wait", "future", "then", "recv from any"], ["recv", "send", "reduce_scatter"]


def ended_from_outside(form):
    rank, told = dist.get_rank(), None
    with side_channel() as meet:
        if rank == 0:
            wait = start(form, rank)
            threading.Timer(0.1, lambda: wire.fail_pending("the kernel was interrupted")).start()
            try:
                wait()
            except RuntimeError as error:
                told = isinstance(error, WireError), str(wire.cause_of(error))
        left = len(wire.pending())
        meet()
        if rank == 1 and form in IN_PYTHON:
            answer(form, rank)
    return told, left


def assert_ended(told, left, form):
    assert told[1] == "the kernel was interrupted" and left == 0
    assert told[0] or form in ("future", "then"), "wait() raises the WireError itself; a future carries its text"


@pytest.mark.parametrize("form", IN_PYTHON)
def test_fail_pending_ends_every_kind_of_wait(ranks, form):
    assert_ended(*ranks[:2].run(ended_from_outside, form)[0], form)


@pytest.mark.parametrize("form", IN_GLOO)
def test_fail_pending_ends_waits_inside_gloo(ranks, outcomes, form):
    """There the way out is through the sockets, so the pool has to make a new world afterwards."""
    assert_ended(*outcomes(ranks[:2], ended_from_outside, form)[0], form)


def write_outcome(folder, function, args):
    value = function(*args)
    Path(folder, str(dist.get_rank())).write_text(repr(value))


@pytest.fixture
def outcomes(tmp_path):
    """Runs a function that leaves the ranks uneven, for which the pool withholds results: they come as files."""

    def run(ranks, function, *args):
        with contextlib.suppress(RankError):
            ranks.run(write_outcome, str(tmp_path), function, args)
        with contextlib.suppress(RankError):
            ranks.run(dist.barrier)  # a world that was cut says so at its next operation
        written = {path.name: literal_eval(path.read_text()) for path in tmp_path.iterdir()}
        assert ranks.run(dist.get_rank) == list(range(len(ranks))), "the next run works"
        return [written[str(rank)] for rank in range(len(ranks))]

    return run


def cut_off():
    """Rank 0 cuts its connections while it waits for a message; rank 1 then sends it, and notices nothing."""
    rank, told = dist.get_rank(), None
    with side_channel() as meet:
        if rank == 0:
            work = dist.irecv(torch.empty(2), 1)
            meet()
            wire.cut()
            try:
                work.wait()
            except RuntimeError as error:
                told = type(error).__name__
            meet()
        else:
            meet(), meet()
            dist.send(torch.ones(2), 0)
            told = "sent"
    return told


def test_a_cut_ends_blocked_operations_here_and_hurts_no_peer(ranks, outcomes):
    """A send that finds its connection gone is where gloo's thread may stay for good."""
    assert outcomes(ranks[:2], cut_off) == ["RuntimeError", "sent"]


def timed_out(form):
    started, second = time.perf_counter(), datetime.timedelta(seconds=0.3)
    group = dist.new_group(timeout=second if form == "new_group" else None)
    if form == "set_timeout":
        group.set_timeout(second)
    if dist.get_rank() == 1:
        return None
    try:
        work = group.allreduce([torch.ones(2)])
        work.wait(*[second] if form == "wait" else [])
    except RuntimeError as error:
        return str(error), time.perf_counter() - started


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("wait", "is not complete after 0.3 s (the timeout given to wait)"),
        ("new_group", "rank 1 has not called it"),
        ("set_timeout", "rank 1 has not called it"),
    ],
)
def test_a_timeout_says_what_did_not_come(ranks, outcomes, form, words):
    text, seconds = outcomes(ranks[:2], timed_out, form)[0]
    assert words in text and seconds >= 0.3


def interrupt_once_it_waits(at_most):
    """Send SIGINT to this process once its main thread has stood at one place for a while, as it does inside gloo.

    A busy machine may need long until then. at_most: seconds after which it is sent anyway, for a wait in Python, which
    never stands still.
    """
    main, place, num_same = threading.main_thread().ident, None, 0
    deadline = time.monotonic() + at_most
    while num_same < 10 and time.monotonic() < deadline:
        time.sleep(0.02)
        frame = sys._current_frames()[main]
        num_same = num_same + 1 if (frame.f_code, frame.f_lasti) == place else 0
        place = frame.f_code, frame.f_lasti
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(form):
    rank, told = dist.get_rank(), None
    with side_channel() as meet:
        if rank == 0:
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            wait = start(form, rank)
            at_most = 0.1 if form in IN_PYTHON else 20
            threading.Thread(target=interrupt_once_it_waits, args=(at_most,)).start()
            try:
                wait()
            except KeyboardInterrupt:
                told = "interrupted"
            signal.signal(signal.SIGINT, before)
        meet()
        if form in IN_PYTHON:
            answer(form, rank) if rank else wait()
    return told, len(wire.pending())


@pytest.mark.parametrize("form", ["wait", "recv from any"])
def test_a_wait_can_be_interrupted_and_taken_up_again(ranks, form):
    assert ranks[:2].run(interrupted, form) == [("interrupted", 0), (None, 0)]


@pytest.mark.parametrize("form", IN_GLOO)
def test_a_wait_inside_gloo_can_be_interrupted(ranks, outcomes, form):
    assert outcomes(ranks[:2], interrupted, form)[0] == ("interrupted", 0)


def heard_afterwards(form):
    """Rank 0 is told to stop while it waits inside gloo, and rank 1 comes later."""
    rank, told = dist.get_rank(), []
    with side_channel() as meet:
        if rank == 1:
            meet()
            answer(form, rank)
            return told
        before, gloo.SIGNALS.ends_waits = signal.signal(signal.SIGINT, lambda *_: told.append("asked")), False
        wait = start(form, rank)
        threading.Thread(target=lambda: (interrupt_once_it_waits(20), meet())).start()
        try:
            wait()
        finally:
            gloo.SIGNALS.ends_waits = True
            signal.signal(signal.SIGINT, before)
    return told


@pytest.mark.parametrize("form", IN_GLOO)
def test_a_program_that_handles_its_interrupts_itself_ends_its_wait(ranks, form):
    assert ranks[:2].run(heard_afterwards, form) == [["asked"], []]


def destroyed(way):
    """Rank 0 destroys a group in which it still waits: the wait ends, and the world goes on."""
    rank, told = dist.get_rank(), None
    group = dist.new_group()
    dist.barrier()  # the other rank has to be connected before this one leaves
    if rank == 0:
        work = group.allreduce([torch.ones(2)])
        group.abort() if way == "abort" else dist.destroy_process_group(group)
        try:
            work.wait()
        except WireError as error:
            told = str(error)
    return told, len(wire.pending()), dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("way", ["abort", "destroy"])
def test_a_group_takes_its_operations_with_it(ranks, outcomes, way):
    told, left, _ = outcomes(ranks[:2], destroyed, way)[0]
    assert (told, left) == ("its process group was destroyed", 0)


def destroyed_under_a_thread():
    """A thread of rank 0 is inside gloo, for a message that never comes, when its group is destroyed."""
    group, told = dist.new_group(), []
    dist.barrier()
    if dist.get_rank() == 0:
        work = group.recv([torch.ones(2)], 1)

        def wait():
            try:
                work.wait()
            except WireError as error:
                told.append(str(error))

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        while work.direct is None or not work.direct.inside:
            time.sleep(0.001)
        dist.destroy_process_group(group)
        thread.join(20)
    return told


def test_a_thread_inside_gloo_comes_out_when_its_group_goes(ranks, outcomes):
    assert outcomes(ranks[:2], destroyed_under_a_thread)[0] == ["its process group was destroyed"]


def refused_on_one_rank():
    """gloo does not take rank 1's sparse tensor, so what rank 0 has issued can never complete."""
    try:
        dist.all_reduce(torch.eye(2) if dist.get_rank() == 0 else torch.eye(2).to_sparse_csr())
    except RuntimeError as error:
        return type(error).__name__, str(error), getattr(error, "culprit", None)


def test_an_operation_that_one_rank_could_not_issue_ends_for_the_others(ranks, outcomes):
    (kind, text, culprit), (own_kind, _, _) = outcomes(ranks[:2], refused_on_one_rank)
    assert (kind, culprit, own_kind) == ("WireError", 1, "NotImplementedError")
    assert "rank 1 could not issue all_reduce SUM float32 (2, 2) (test_end.py line" in text


def test_other_errors_have_no_wire_behind_them():
    assert wire.cause_of(ValueError("a bad batch")) is None


# -- the parts, without ranks ------------------------------------------------------------------------------------------
def make_work():
    done = []
    return WireWork(Signature("all_reduce", "all_reduce"), 0, ("x.py", 1, "f"), ["out"], done.append), done


def test_only_the_first_end_counts():
    work, done = make_work()
    work.finish()
    work.finish(WireError("too late"))
    assert work.wait() and work.is_success() and done == [work]


def test_a_future_made_late_is_complete_at_once():
    work, _ = make_work()
    work.finish()
    assert work.get_future().value() == ["out"] and work.get_future() is work.get_future()


def test_a_future_of_a_failed_operation_raises():
    work, _ = make_work()
    future = work.get_future()
    work.finish(WireError("no luck", kind="mismatch", culprit=2))
    with pytest.raises(RuntimeError, match="no luck"):
        future.wait()
    with pytest.raises(WireError) as caught:
        work.wait()
    assert (caught.value.kind, caught.value.culprit) == ("mismatch", 2)


def test_many_threads_may_wait_for_one_operation():
    work, _ = make_work()
    results = []
    threads = [threading.Thread(target=lambda: results.append(work.wait())) for _ in range(8)]
    for thread in threads:
        thread.start()
    work.finish()
    for thread in threads:
        thread.join()
    assert results == [True] * 8


def test_waiter_threads_are_used_again():
    waiters, names, arrived = Waiters(), [], threading.Semaphore(0)
    for _ in range(5):
        waiters.call(lambda: names.append(threading.current_thread().name), lambda error: arrived.release())
        arrived.acquire()
        while waiters.num_idle == 0:
            time.sleep(0)
    assert len(names) == 5 and sum(t.name == "wire waiter" for t in threading.enumerate()) <= 1


def test_an_error_in_a_waiter_reaches_its_operation():
    waiters, errors, arrived = Waiters(), [], threading.Semaphore(0)

    def fail():
        raise RuntimeError("Connection closed by peer")

    def done(error):
        errors.append(error)
        arrived.release()

    waiters.call(fail, done)
    arrived.acquire()
    assert str(errors[0]) == "Connection closed by peer"
