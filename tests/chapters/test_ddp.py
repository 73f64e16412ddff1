"""Chapter 03's free clock: both strategies are timed on the same model, and only naive averages after backward."""

from helpers.chapters.ddp import seconds_of_naive_and_overlapped
from helpers.observe.comms import record_comms


def timed_and_counted():
    with record_comms() as recorder:
        seconds = seconds_of_naive_and_overlapped(widths=(8, 8, 8), rounds=1)
    gradients = [event for event in recorder.log.events if event.op == "all_reduce" and "float" in event.dtype]
    return seconds, len(gradients)


def test_naive_and_overlapped_are_timed_by_turns(ranks):
    for (naive, overlapped), messages in ranks[:2].run(timed_and_counted):
        assert naive > 0 and overlapped > 0
        assert messages == 2 * (4 + 1)  # two rounds: a message for each of four parameters, and one bucket
