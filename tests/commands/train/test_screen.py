"""What stands in a terminal of 80 columns, and what Ctrl-C does to the loop."""

from __future__ import annotations

import io
import signal

import pytest

from helpers.commands.train import on_ranks
from helpers.commands.train.loop import INTERRUPTED, Loop
from helpers.commands.train.on_ranks import StepReport
from helpers.commands.train.options import parse_options
from helpers.commands.train.screen import Screen, clock, table
from helpers.commands.train.signals import StopRequest
from helpers.learner.words.wrapping import width


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(params=["en", "zh"])
def screen(request, monkeypatch):
    for name, value in {"RANKS_LANGUAGE": request.param, "TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    return Screen(parse_options("--steps 10000".split()), Terminal())


def test_the_moving_line_stays_one_line(screen):
    for number in (1, 5000, 10000):
        screen.step(number, [StepReport(loss=12.3456, norm=float("inf"), seconds=1e-4, stop_requested=False)])
    screen.line("done")
    *moving, end = screen.out.getvalue().split("\r")
    assert all(width(line) == 79 for line in moving if line) and end.endswith("\ndone\n") and "inf" in end


class Pressed:
    """No ranks: they answer steps up to `last`, and then Ctrl-C is pressed."""

    device = "cpu"

    def __init__(self, last):
        self.last = last

    def run(self, fn, *arguments):
        if fn is on_ranks.start and self.last >= 0:
            return [("", arguments[0].folder)]
        self.last -= 1
        if self.last < 0:
            raise KeyboardInterrupt
        return [StepReport(loss=1.0, norm=1.0, seconds=1.0, stop_requested=False)]


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (-1, "Stopped before the first step was done; there is nothing to save."),
        (0, "Stopped before the first step was done; there is nothing to save."),
        (1, "ended after step 1.\nYou asked to stop at once.\nNo checkpoint was saved."),
    ],
)
def test_an_interrupted_run_is_not_told_to_save_more_often(last, says):
    options, out = parse_options(["--plan", "dp=1"]), io.StringIO()
    assert Loop(Pressed(last), options, 0, Screen(options, out)).run() == INTERRUPTED
    assert out.getvalue().endswith(says + "\n") and "--save-every" not in out.getvalue()


@pytest.mark.parametrize("screen", ["en"], indirect=True)
def test_a_long_run_says_in_80_columns_how_long_it_still_takes(screen):
    for number in (9000, 9137):
        screen.step(number, [StepReport(loss=12.3456, norm=125.06, seconds=0.1, stop_requested=False)])
    first, second = screen.out.getvalue().split("\r")[1:]
    assert "· 1:40 left" in first and "· 1:27 left" in second and "━" in second
    assert clock(0.02) == "0:01" and clock(7500) == "2:05:00"


def test_ranks_with_the_same_bytes_share_a_line_and_what_nobody_has_is_left_out():
    rows = [{"dp": 2000, "pp": 0}, {"dp": 2000, "pp": 0}, {"dp": 3, "pp": 0}]
    head, both, last = table(rows, str.upper)
    assert head.split() == ["DP"] and both.split() == ["ranks", "0,", "1", "2.00", "kB"] and last.endswith("3 B")


def test_the_first_signal_asks_the_second_interrupts_and_one_that_was_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.is_requested
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_requested
            signal.raise_signal(signal.SIGTERM)  # a cluster may send it twice, and means no more by it
    finally:
        signal.signal(signal.SIGINT, before)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
