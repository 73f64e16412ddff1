"""The verdict on a rank follows from what is known of all ranks, so each case is one line and no rank has to die."""

from __future__ import annotations

import pytest

from helpers.elastic import Beat, RankStatus, verdict
from helpers.elastic.heartbeat import MAX_GAP, Listener

WELL = RankStatus()
WAITS = RankStatus(stalled=5.0, idle=5.0, is_waiting=True)


@pytest.mark.parametrize(
    "suspect, others, found",
    [
        (WELL, WELL, "alive"),
        (RankStatus(silent=2.0), WELL, "dead"),
        (RankStatus(silent=1.9), WELL, "alive"),
        (RankStatus(stalled=5.0, idle=5.0), WAITS, "hung"),
        (RankStatus(stalled=5.0, idle=1.0), WAITS, "slow"),  # it computes, or wants a core that others have
        (RankStatus(stalled=5.0, idle=5.0), WELL, "slow"),  # the others come further: nobody misses it yet
        (RankStatus(stalled=60.0, idle=0.0), WAITS, "hung"),  # a loop without an end
        (WAITS, WELL, "alive"),
    ],
)
def test_a_rank_is_judged_by_its_status_and_by_those_of_the_others(suspect, others, found):
    assert verdict({0: others, 1: suspect, 2: others})[1] == found


def test_who_waits_for_a_hung_rank_is_alive():
    assert verdict({0: WAITS, 1: RankStatus(stalled=5.0, idle=5.0), 2: WAITS}) == {0: "alive", 1: "hung", 2: "alive"}


def test_one_rank_alone_can_hang():
    assert verdict({0: RankStatus(stalled=3.0, idle=3.0)}) == {0: "hung"}


def status_after(*moments: tuple[float, Beat], is_working: bool = False) -> RankStatus:
    listener = Listener()
    for now, beat in moments:
        listener.listen(0, beat, now, is_working=is_working)
    return listener.statuses[0]


BEAT = Beat(number=1, step=1, calls=10, is_busy=False)
LATER = Beat(number=2, step=1, calls=10, is_busy=False)


def test_a_beat_that_comes_no_more_is_silence():
    assert status_after((0.0, BEAT), (0.4, BEAT), (0.8, BEAT)).silent == pytest.approx(0.8)
    assert status_after((0.0, BEAT), (0.4, BEAT), (0.8, LATER)).silent == 0.0
    assert status_after((0.0, BEAT), (0.4, BEAT), (0.8, BEAT), is_working=True).silent == 0.0


def test_a_rank_that_beats_without_progress_is_stalled():
    status = status_after((0.0, BEAT), (0.4, LATER))
    assert (status.silent, status.stalled, status.idle) == (0.0, 0.4, 0.4)
    busy = Beat(number=2, step=1, calls=10, is_busy=True)
    assert status_after((0.0, BEAT), (0.4, busy)).idle == 0.0
    further = Beat(number=2, step=1, calls=11, is_busy=False)
    assert status_after((0.0, BEAT), (0.4, further)).stalled == 0.0


def test_a_laptop_that_was_closed_for_an_hour_declares_nobody_dead():
    assert status_after((0.0, BEAT), (3600.0, BEAT)).silent == MAX_GAP
