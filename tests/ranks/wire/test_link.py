"""The dial: nothing arrives before an alpha-beta link would have delivered it; a link carries one message at a time.

Lower bounds only: a busy machine may be slower than any link, never faster.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.quantities import costs
from helpers.ranks import Ranks
from helpers.ranks.wire import wire
from helpers.ranks.wire.group import WireGroup
from helpers.ranks.wire.session import BOTH, IN, OUT, EmulatedLink, link_from_dict, link_seconds
from helpers.specs import Link, Nodes

LINK = Link(latency=0.01, bandwidth=1e6)  # 100 ms for 90 kB


@pytest.fixture(scope="module")
def slow_ranks():
    with Ranks(3, device="cpu", link=LINK, timeout=60, quiet=True) as pool:
        yield pool


# -- the formulas ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier"])
def test_collectives_take_what_costs_says(name):
    assert link_seconds(LINK, name, 90_000, 4) == costs.seconds(name, 90_000, 4, LINK)


def test_an_all_gather_is_told_its_part_and_priced_by_the_whole():
    assert link_seconds(LINK, "all_gather", 90_000, 4) == costs.seconds("all_gather", 360_000, 4, LINK)


@pytest.mark.parametrize(
    ("name", "num_bytes", "num_ranks", "seconds"),
    [
        ("all_reduce", 90_000, 3, 4 * 0.01 + 2 * (2 / 3) * 0.09),
        ("send", 90_000, 3, 0.1),
        ("recv", 0, 3, 0.01),
        ("gather", 90_000, 3, 0.2),
        ("scatter", 90_000, 3, 0.2),
        ("all_reduce", 90_000, 1, 0.0),
    ],
)
def test_numbers_worked_by_hand(name, num_bytes, num_ranks, seconds):
    assert link_seconds(LINK, name, num_bytes, num_ranks) == pytest.approx(seconds)


# -- one end of the link -----------------------------------------------------------------------------------------------
@pytest.fixture
def end():
    link = EmulatedLink(LINK)
    yield link
    link.close()


def test_messages_on_one_lane_follow_each_other(end):
    assert [end.reserve(OUT, ready, 2.0) for ready in (1.0, 1.5, 10.0)] == [1.0, 3.0, 10.0]


def test_a_send_and_a_receive_pass_each_other(end):
    assert [end.reserve(OUT, 1.0, 2.0), end.reserve(IN, 1.0, 2.0)] == [1.0, 1.0]


def test_a_collective_needs_both_lanes(end):
    end.reserve(OUT, 1.0, 2.0)
    assert end.reserve(BOTH, 1.0, 4.0) == 3.0
    assert end.reserve(IN, 1.0, 1.0) == 7.0


def test_what_is_held_is_delivered_in_the_order_of_its_time(end):
    delivered, last = [], threading.Event()
    with end.changed:  # nothing is delivered before all three are there
        now = time.perf_counter()
        end.hold(now + 0.06, lambda: (delivered.append("late"), last.set()))
        end.hold(now + 0.02, lambda: delivered.append("early"))
        end.hold(now - 1.0, lambda: delivered.append("past"))
    assert last.wait(10) and time.perf_counter() >= now + 0.06
    assert delivered == ["past", "early", "late"]


def test_a_closed_link_delivers_nothing():
    link = EmulatedLink(LINK)
    link.close()
    link.hold(time.perf_counter() + 0.01, pytest.fail)
    time.sleep(0.05)


# -- live ranks --------------------------------------------------------------------------------------------------------
def timed(function):
    """Events of `function` on this rank; the starts of all ranks, by their common clock."""
    events = []
    stop = wire.subscribe(events.append)
    try:
        function(dist.get_rank(), dist.get_world_size())
    finally:
        stop()
    return events


def three_buckets(rank, n):
    works = [dist.all_reduce(torch.full((22_500,), float(rank)), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()


def test_collectives_share_the_link_one_after_the_other(slow_ranks):
    logs = slow_ranks.run(timed, three_buckets)
    one = link_seconds(LINK, "all_reduce", 90_000, 3)
    for events in logs:
        assert len(events) == 3
        posted = [max(log[i].start for log in logs) for i in range(3)]
        for i, event in enumerate(sorted(events, key=lambda e: e.sequence)):
            assert event.end >= posted[0] + (i + 1) * one
            assert event.end >= posted[i] + one


def fan_out(rank, n):
    if rank == 0:
        works = [dist.isend(torch.ones(22_500), peer) for peer in (1, 2)]
    else:
        works = [dist.irecv(torch.empty(22_500), 0)]
    for work in works:
        work.wait()


def test_two_sends_of_one_rank_follow_each_other(slow_ranks):
    sender, first, second = slow_ranks.run(timed, fan_out)
    start = sender[0].start if sender[0].peer == 1 else sender[1].start
    assert first[0].end >= start + LINK.seconds(90_000)
    assert second[0].end >= start + 2 * LINK.seconds(90_000)


def fan_in(rank, n):
    if rank == 2:
        works = [dist.irecv(torch.empty(22_500), peer) for peer in (0, 1)]
    else:
        works = [dist.isend(torch.ones(22_500), 2)]
    for work in works:
        work.wait()


def test_two_receives_of_one_rank_follow_each_other(slow_ranks):
    first, second, receiver = slow_ranks.run(timed, fan_in)
    begin = max(min(first[0].start, second[0].start), receiver[0].start)
    assert max(event.end for event in receiver) >= begin + 2 * LINK.seconds(90_000)


def test_collectives_take_the_link_in_their_own_order_however_gloo_completes_them():
    taken = []
    link = SimpleNamespace(hold=lambda due, deliver: taken.append(due))
    session = SimpleNamespace(config=SimpleNamespace(inner="gloo"), counters={}, link=link)
    group = WireGroup(session, None, "0", (0, 1), 0)
    group._arrival_time = lambda work: work.sequence
    for sequence, inner in [(2, "work"), (0, "work"), (3, "work"), (1, None), (4, "work")]:
        group._deliver_in_order(SimpleNamespace(sequence=sequence, inner=inner, finish=None, signature=None))
    assert taken == [0, 2, 3, 4], "number 1 was never issued, so it takes nothing"


def values(rank, n):
    x = torch.full((3,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 3
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    assert future.wait()[0].tolist() == [3.0, 3.0]


def test_values_arrive_unchanged_and_futures_wait_too(slow_ranks):
    for events in slow_ranks.run(timed, values):
        assert all(e.end - e.start >= link_seconds(LINK, "all_reduce", 8, 3) for e in events)


def refused_then_served(rank, n):
    try:
        dist.all_reduce(torch.eye(2).to_sparse_csr())
    except RuntimeError:
        dist.all_reduce(torch.ones(2))


def test_an_operation_that_gloo_refuses_does_not_block_the_link(slow_ranks):
    assert [len(events) for events in slow_ranks.run(timed, refused_then_served)] == [1, 1, 1]


def test_a_link_without_the_check():
    with Ranks(2, device="cpu", link=LINK, check=False, timeout=60, quiet=True) as pool:
        for events in pool.run(timed, without_board):
            durations = {e.op: e.end - e.start for e in events}
            assert durations["all_reduce"] >= link_seconds(LINK, "all_reduce", 90_000, 2)
            assert durations["recv"] >= LINK.seconds(90_000) or durations["send"] >= LINK.seconds(90_000)


def without_board(rank, n):
    dist.all_reduce(torch.ones(22_500))
    works = [dist.isend(torch.ones(22_500), 1 - rank), dist.irecv(torch.ones(22_500), 1 - rank)]
    for work in works:
        work.wait()
    assert wire.pending() == []


# -- nodes: a fast link inside, a slow one across ----------------------------------------------------------------------
NODES = Nodes(nodes=((0, 2), (1, 3)), inside=Link(latency=0, bandwidth=1e12), across=LINK)


def test_what_joins_ranks_is_decided_by_their_nodes():
    assert NODES.between([0, 2]) == NODES.inside and NODES.between([0, 1]) == NODES.between(range(4)) == LINK
    assert (
        link_from_dict(asdict(NODES)) == NODES and link_from_dict(asdict(LINK)) == LINK and link_from_dict(None) is None
    )


@pytest.mark.parametrize("nodes", [(), ((0, 1), (1, 2)), ((0, 2),)])
def test_a_rank_on_no_node_or_on_two_is_refused(nodes):
    with pytest.raises(ValueError, match="put each rank from 0 on into one node, once"):
        Nodes(nodes=nodes, inside=LINK, across=LINK)


def test_each_link_of_nodes_has_lanes_of_its_own():
    end = EmulatedLink(NODES)
    assert [end.reserve(OUT, 1.0, 2.0, link) for link in (NODES.inside, LINK, LINK)] == [1.0, 1.0, 3.0]
    joins = [end.between((0, 1, 2, 3), 0, peer) for peer in (None, 1, 2)]
    assert joins == [LINK, LINK, NODES.inside]
    end.close()


def across(rank, n):
    group = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(22_500), group=group)
    dist.send(torch.ones(22_500), rank + 1) if rank % 2 == 0 else dist.recv(torch.ones(22_500), rank - 1)


def test_messages_across_nodes_wait_for_the_slow_link():
    with Ranks(4, device="cpu", link=NODES, timeout=60, quiet=True) as pool:
        for events in pool.run(timed, across):
            took = {event.op: event.end - event.start for event in events}
            assert took.pop("all_reduce") >= link_seconds(LINK, "all_reduce", 90_000, 2)
            assert all(seconds >= LINK.seconds(0) for seconds in took.values())
