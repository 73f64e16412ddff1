"""What a rank prints and says arrives whole, and interrupts wait for the end of a message."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace

import cloudpickle
import pytest

from helpers.grading.safeguards.limits import processor_limit
from helpers.ranks import RankError, pipe, worker
from helpers.ranks.pipe import (
    Capture,
    InterruptedMessage,
    Outbox,
    defer_interrupts,
    interruptible,
    interrupts_in_waits_only,
    uninterruptible,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_what_is_said_in_the_middle_of_a_message_goes_next():
    """A collection of garbage calls a destructor that prints, while the same thread sends."""
    kernel, rank = Pipe()
    outbox = Outbox(rank)

    class Talks:
        def __reduce__(self):
            outbox.send(("out", "I am destroyed"))
            return str, ("value",)

    outbox.send(("done", Talks()))
    assert [kernel.recv(), kernel.recv()] == [("done", "value"), ("out", "I am destroyed")]
    kernel.close()
    rank.close()


def prints_with_a_signal_between_the_halves(number: int) -> None:
    one_half, sent = Connection._send, []

    def and_signal(connection, *given):
        one_half(connection, *given)
        sent.append(number)
        if len(sent) == 1:
            signal.raise_signal(number)

    Connection._send = and_signal
    try:
        with processor_limit(60) if number == signal.SIGPROF else contextlib.nullcontext():
            print("a" * 100_000)  # more than one write
    finally:
        Connection._send = one_half


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGPROF, "TooLong")])
def test_a_signal_within_a_message_waits_for_its_end(ranks, number, raised):
    with pytest.raises(RankError, match=raised):
        ranks.run(prints_with_a_signal_between_the_halves, number)
    assert ranks.run(len, "abcd") == [4] * 4


def cannot_say_where_it_is() -> None:
    worker.ACTIVE.where = None
    while True:
        time.sleep(0.01)


def test_a_rank_that_cannot_answer_is_gone_and_not_deaf(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(cannot_say_where_it_is)
    assert caught.value.kind == "died"
    assert ranks.run(len, "abcd") == [4] * 4


def keeps_pythons_lock() -> None:
    re.match("(a+)+$", "a" * 64 + "b")


def test_where_the_threads_of_a_rank_without_an_answer_were_is_kept_for_us(ranks, monkeypatch, caplog):
    monkeypatch.setattr(ranks, "timeout", 4)
    with pytest.raises(RankError, match="does not answer"):
        ranks.run(keeps_pythons_lock)
    assert re.search(r"Thread 0x\w+ .*\n(  File .*\n)*  File .*worker.py.* in control", caplog.text), caplog.text


def hears_nothing_from_now_on() -> None:
    me = worker.ACTIVE
    me.tasks = SimpleNamespace(get=me.tasks.get, put=lambda message: threading.Event().wait())


def test_a_rank_that_has_not_taken_up_its_task_is_said_to_be_deaf(ranks, monkeypatch, caplog):
    caplog.set_level("CRITICAL", logger="helpers.ranks.report")
    ranks.run(hears_nothing_from_now_on)
    monkeypatch.setattr(ranks, "timeout", 4)
    with pytest.raises(RankError, match="rank 3 did not receive the task") as caught:
        ranks.run(len, "abcd")
    assert caught.value.kind == "deaf" and ranks.run(len, "abcd") == [4] * 4


def test_an_interrupt_waits_for_the_end_and_a_second_does_not():
    done = []
    with pytest.raises(KeyboardInterrupt), defer_interrupts():
        signal.raise_signal(signal.SIGINT)
        done.append("whole")
    with pytest.raises(InterruptedMessage), defer_interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("too late")
    assert done == ["whole"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def press():
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_is_raised_by_the_next_wait_or_at_the_end():
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_in_waits_only():
        press()
        done.append("before the wait")
        with interruptible():
            done.append("in the wait")
    with pytest.raises(KeyboardInterrupt), interrupts_in_waits_only():
        with interruptible():
            press()
            done.append("in the wait")
    with pytest.raises(KeyboardInterrupt), interrupts_in_waits_only(), interrupts_in_waits_only():
        with defer_interrupts():
            press()
        done.append("until the end")
    assert done == ["before the wait", "until the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_only_notes_an_interrupt_hears_the_next_one_in_the_same_wait():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("once"))
    try:
        with interrupts_in_waits_only(), interruptible():
            press()
            press()
            assert heard == ["once", "once"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_no_wait_is_interrupted_while_that_is_forbidden():
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_in_waits_only():
        with uninterruptible(), interruptible():
            press()
            done.append("to its end")
        with interruptible():
            done.append("the next one")
    assert done == ["to its end"]


def test_an_interrupt_ends_nothing_that_an_error_has_ended():
    with pytest.raises(ValueError), interrupts_in_waits_only():
        press()
        raise ValueError
    with interrupts_in_waits_only():
        pass  # nothing is left of it


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("halves", ["_send", "_recv"])
@pytest.mark.parametrize(("presses", "says"), [(1, "variables are kept"), (2, "variables are lost")])
def test_ranks_answer_after_an_interrupt_within_a_message(ranks, monkeypatch, halves, presses, says):
    """Between the two halves that a pipe's message has: its length and what it holds."""
    one_half, pressed = getattr(Connection, halves), []

    def and_interrupt(connection, *given):
        value = one_half(connection, *given)
        while len(pressed) < presses:
            pressed.append(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return value

    ranks.run(int)
    monkeypatch.setattr(Connection, halves, and_interrupt)
    with pytest.raises(RankError, match="interrupted") as caught:
        ranks.run(len, b"a" * 100_000)  # more than one write
    assert says in str(caught.value)
    assert len(pressed) == presses and ranks.run(len, "abcd") == [4] * 4


def test_whole_lines_go_at_once_and_the_rest_at_the_end():
    sent = []
    stream = Capture(sent.append)
    print("one\ntwo", end="", file=stream)
    assert sent == ["one\n"]
    stream.finish()
    assert sent == ["one\n", "two"]


def test_a_flood_is_cut_and_counted():
    sent = []
    stream = Capture(sent.append)
    for _ in range(1000):
        print("x" * 999, file=stream)
    stream.finish()
    assert sum(map(len, sent)) < pipe.MAX_CHARACTERS + 200
    assert "more characters that a notebook could not hold" in sent[-1]
    assert "800,000" in sent[-1]


def test_a_line_without_an_end_is_cut_too():
    sent = []
    stream = Capture(sent.append)
    for _ in range(5):
        stream.write("x" * pipe.MAX_CHARACTERS)
    assert 0 < sum(map(len, sent)) <= pipe.MAX_CHARACTERS
    stream.finish()
    assert "800,000 more characters" in sent[-1]


def test_the_next_run_may_print_again():
    sent = []
    stream = Capture(sent.append)
    print("x" * (pipe.MAX_CHARACTERS + 10), file=stream)
    stream.finish()
    sent.clear()
    print("again", file=stream)
    stream.finish()
    assert sent == ["again\n"]
