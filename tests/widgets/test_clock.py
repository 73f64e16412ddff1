"""The clock's kernel side: what it sends and says. The browser's side is looked at in tests/browser."""

from datetime import UTC, datetime, timedelta

import pytest

from helpers.interview.drills import Stopwatch, clock_text
from helpers.widgets import Clock


class Time:
    def __init__(self):
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += timedelta(seconds=seconds)


def test_it_counts_down_then_over_and_stands_still_once_stopped():
    time = Time()
    clock = Clock(minutes=1, now=time)
    assert clock.text == "1:00 not begun" and clock.began == 0.0
    assert clock.begin() is clock and clock.began == time.now.timestamp()
    time.wait(20)
    clock.begin()
    assert clock.text == "0:40 of 1:00 left"
    time.wait(52)
    assert clock.text == "0:12 over the 1:00; you may go on"
    clock.stop()
    time.wait(100)
    assert clock.text == "1:12 of 1:00 used" and clock.ended - clock.began == 72


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (75, "1:15"), (3600, "60:00")])
def test_time_as_on_a_clock(seconds, text):
    assert clock_text(seconds) == text


def test_a_clock_that_goes_back_gives_no_negative_time():
    time = Time()
    watch = Stopwatch(60, time)
    watch.begin()
    time.wait(-100)
    assert watch.seconds == 0.0
    Stopwatch(60, time).stop()  # never begun: nothing


def test_it_shows_the_clock_of_another():
    time = Time()
    clock, watch = Clock(minutes=15, now=time), Stopwatch(180, time)
    watch.begin()
    clock.show(watch.state)
    assert (clock.limit, clock.began, clock.ended) == (180, time.now.timestamp(), 0.0)


def test_it_tells_the_browser_what_time_it_is_here(monkeypatch):
    clock, sent = Clock(now=Time()), []
    monkeypatch.setattr(clock, "send", sent.append)
    clock._handle_custom_msg({"ask": "now"}, [])
    clock._handle_custom_msg({"other": 1}, [])
    assert sent == [{"now": datetime(2026, 1, 1, tzinfo=UTC).timestamp()}]


def test_it_speaks_both_languages():
    clock = Clock(language="zh")
    assert clock.text == "15:00 尚未开始"
    clock.speak("en")
    assert clock.text == "15:00 not begun"


def test_a_saved_notebook_keeps_the_limit_and_no_time():
    time = Time()
    clock = Clock(now=time)
    before = clock._repr_mimebundle_()
    clock.begin()
    time.wait(100)
    after = clock._repr_mimebundle_()
    assert after["text/plain"] == before["text/plain"] == repr(clock) and after["text/html"] == before["text/html"]
    assert before["text/html"] == "<p>15:00 not begun</p>" and clock.TEXT.startswith("[widget] Clock")
