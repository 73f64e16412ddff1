"""What stands in a terminal of 80 columns, and what Ctrl-C does to the loop."""

from __future__ import annotations

import io
import signal

import pytest

from helpers.interview.wrapping import width
from helpers.train.on_ranks import Report
from helpers.train.options import settings
from helpers.train.screen import Screen, table
from helpers.train.stop import Stop


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_moving_line_stays_one_line(monkeypatch, lang):
    monkeypatch.setenv("RANKS_LANGUAGE", lang)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    screen = Screen(settings("--steps 10000".split()), Terminal())
    for number in (1, 5000, 10000):
        screen.step(number, [Report(loss=12.3456, norm=float("inf"), seconds=1e-4, asked=False)])
    screen.line("done")
    *moving, end = screen.out.getvalue().split("\r")
    assert all(width(line) == 79 for line in moving if line) and end.endswith("\ndone\n") and "inf" in end


def test_ranks_with_the_same_bytes_share_a_line_and_what_nobody_has_is_left_out():
    rows = [{"dp": 2000, "pp": 0}, {"dp": 2000, "pp": 0}, {"dp": 3, "pp": 0}]
    head, both, last = table(rows, str.upper)
    assert head.split() == ["DP"] and both.split() == ["ranks", "0,", "1", "2.00", "kB"] and last.endswith("3 B")


def test_the_first_signal_asks_the_second_interrupts_and_one_that_was_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stop() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.asked
            signal.raise_signal(signal.SIGTERM)
            assert stop.asked
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
