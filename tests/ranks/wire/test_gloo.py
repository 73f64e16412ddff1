"""How waits end and how a group's connections are closed, without ranks.

Who is asked, which sockets stay open, which group is kept.
"""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import pytest

from helpers.ranks.wire.gloo import ClosedGroups, Connections, DirectWait, close_connections


class Inner:
    """A process group in which the connections to `dead` ranks are closed."""

    def __init__(self, *dead):
        self.dead, self.asked = dead, []

    def recv(self, tensors, peer, tag):
        self.asked.append(peer)
        if peer in self.dead:
            raise RuntimeError("Connection closed by peer")
        return SimpleNamespace(wait=self.time_out)

    def time_out(self, seconds):
        raise RuntimeError("Timed out waiting 1ms for recv operation to complete")


class Wire:
    def __init__(self, *dead):
        self.inner, self.done = Inner(*dead), False
        work = SimpleNamespace(inner=SimpleNamespace(is_completed=lambda: self.done))
        self.group = SimpleNamespace(rank=1, size=4, issued={1: work}.values())


def test_a_failure_cuts_off_the_programs_thread_and_leaves_a_spare_thread_alone():
    cuts, errors = [], []
    spare = SimpleNamespace(call=lambda wait, done: None)
    direct = DirectWait(lambda: direct.end(), errors.append, spare, lambda: cuts.append("cut"))
    direct.wait()
    assert cuts == ["cut"] and errors == [None]
    handed = DirectWait(lambda: None, errors.append, spare, lambda: cuts.append("cut"))
    handed.hand_over(), handed.end(), handed.wait()
    assert cuts == ["cut"] and errors == [None]


def test_a_failure_between_taking_a_call_and_making_it_cuts_it_off():
    class EndsAtFirstExit:
        used = False

        def __enter__(self):
            pass

        def __exit__(self, *_):
            if not self.used:
                self.used = True
                direct.end()

    cuts = []
    direct = DirectWait(lambda: None, lambda error: None, None, lambda: cuts.append("cut"))
    direct.lock = EndsAtFirstExit()
    direct.wait()
    assert cuts == ["cut"]


def test_one_receive_that_times_out_closes_everything():
    for dead, asked in (((), [0]), ((0, 2), [0, 2, 3]), ((0, 2, 3), [0, 2, 3])):
        inner = Inner(*dead)
        close_connections(inner, 1, 4)
        assert inner.asked == asked


def test_connections_are_closed_once():
    wire = Wire()
    connections = Connections(wire, {}, ClosedGroups())
    connections.close(), connections.close()
    assert wire.inner.asked == [0]


def test_a_socket_stays_open_for_the_peer_until_all_have_met_again():
    (ours, theirs), ended = socket.socketpair(), ClosedGroups()
    ended.add(Wire(), {ours.fileno(): os.fstat(ours.fileno()).st_ino, theirs.fileno(): -1})
    ours.close()
    with theirs:
        theirs.send(b"the peer notices nothing")
        ended.release()
        with pytest.raises(OSError):
            theirs.send(b"now it does")


def test_a_group_that_gloo_works_in_is_kept():
    ended, wire = ClosedGroups(), Wire()
    ended.add(wire, {})
    ended.release()
    assert ended.busy == [wire]
    wire.done = True
    ended.release()
    assert not ended.busy
