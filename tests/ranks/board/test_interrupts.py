"""When an interrupt is raised: after a message, or in a wait."""

from __future__ import annotations

import signal

import pytest

from helpers.ranks.board.interrupts import (
    InterruptedMessage,
    defer_interrupts,
    interruptible,
    interrupts_in_waits_only,
    uninterruptible,
)


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
