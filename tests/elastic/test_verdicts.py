"""The verdict is a function: each case is a line of signs, and no rank has to die for it."""

from __future__ import annotations

import pytest

from helpers.elastic import Beat, Sign, verdict
from helpers.elastic.verdicts import MAX_GAP, Listener

WELL = Sign()
WAITS = Sign(still=5.0, idle=5.0, waits=True)


@pytest.mark.parametrize(
    "suspect, others, found",
    [
        (WELL, WELL, "alive"),
        (Sign(silent=2.0), WELL, "dead"),
        (Sign(silent=1.9), WELL, "alive"),
        (Sign(still=5.0, idle=5.0), WAITS, "hung"),
        (Sign(still=5.0, idle=1.0), WAITS, "slow"),  # it computes, or wants a core that others have
        (Sign(still=5.0, idle=5.0), WELL, "slow"),  # the others come further: nobody misses it yet
        (Sign(still=60.0, idle=0.0), WAITS, "hung"),  # a loop without an end
        (WAITS, WELL, "alive"),
    ],
)
def test_a_rank_is_judged_by_its_signs_and_by_those_of_the_others(suspect, others, found):
    assert verdict({0: others, 1: suspect, 2: others})[1] == found


def test_who_waits_for_a_hung_rank_is_alive():
    assert verdict({0: WAITS, 1: Sign(still=5.0, idle=5.0), 2: WAITS}) == {0: "alive", 1: "hung", 2: "alive"}


def test_one_rank_alone_can_hang():
    assert verdict({0: Sign(still=3.0, idle=3.0)}) == {0: "hung"}


def heard(*moments: tuple[float, Beat], works: bool = False) -> Sign:
    listener = Listener()
    for now, beat in moments:
        listener.listen(0, beat, now, works=works)
    return listener.signs[0]


BEAT = Beat(number=1, step=1, calls=10, busy=False)
LATER = Beat(number=2, step=1, calls=10, busy=False)


def test_a_beat_that_comes_no_more_is_silence():
    assert heard((0.0, BEAT), (0.4, BEAT), (0.8, BEAT)).silent == pytest.approx(0.8)
    assert heard((0.0, BEAT), (0.4, BEAT), (0.8, LATER)).silent == 0.0
    assert heard((0.0, BEAT), (0.4, BEAT), (0.8, BEAT), works=True).silent == 0.0


def test_beats_without_progress_are_stillness():
    sign = heard((0.0, BEAT), (0.4, LATER))
    assert (sign.silent, sign.still, sign.idle) == (0.0, 0.4, 0.4)
    busy = Beat(number=2, step=1, calls=10, busy=True)
    assert heard((0.0, BEAT), (0.4, busy)).idle == 0.0
    further = Beat(number=2, step=1, calls=11, busy=False)
    assert heard((0.0, BEAT), (0.4, further)).still == 0.0


def test_a_laptop_that_was_closed_for_an_hour_declares_nobody_dead():
    assert heard((0.0, BEAT), (3600.0, BEAT)).silent == MAX_GAP
