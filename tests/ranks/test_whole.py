"""An interrupt in the middle of a message: the message is whole, and the ranks' next answers can be read."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection

import pytest

from helpers.ranks import RankError
from helpers.ranks.pipe import InterruptedMessage, defer_interrupts


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
