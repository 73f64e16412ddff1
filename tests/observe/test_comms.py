"""What the recorder says was sent is what was sent: op, bytes, line, group, on every rank."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from helpers.observe.comms import CommRecorder, record_comms
from helpers.records import CommEvent, CommLog


def some_operations():
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.full((12,), float(rank))
    with record_comms() as recorder:
        dist.all_reduce(whole, op=dist.ReduceOp.MAX)
        dist.broadcast(torch.zeros(3, dtype=torch.float64), src=size - 1)
        dist.all_gather([torch.empty(5) for _ in range(size)], torch.ones(5))
        work = dist.all_reduce(torch.ones(2), async_op=True)
        dist.barrier()
        work.wait()
        if rank < 2 and size > 1:
            dist.send(torch.ones(4), 1) if rank == 0 else dist.recv(torch.empty(4), 0)
    dist.all_reduce(whole)  # after the recording
    return recorder.log


def test_every_operation_is_recorded_on_every_rank(world):
    logs = world.run(some_operations)
    for rank, log in enumerate(logs):
        collectives = [event for event in log.events if event.op not in ("send", "recv")]
        by_sequence = sorted(collectives, key=lambda event: event.sequence)
        expected = [("all_reduce", 48), ("broadcast", 24), ("all_gather", 20), ("all_reduce", 8), ("barrier", 0)]
        assert [(event.op, event.payload_bytes) for event in by_sequence] == expected
        assert {event.rank for event in log.events} == {rank}
        assert {event.group_ranks for event in log.events} == {tuple(range(len(logs)))}
        assert [event.sequence - by_sequence[0].sequence for event in by_sequence] == [0, 1, 2, 3, 4]
        assert all(event.caller.startswith("test_comms.py:") for event in log.events)
        assert by_sequence[0].reduce_op == "MAX" and by_sequence[1].peer == len(logs) - 1
        assert (by_sequence[1].dtype, by_sequence[1].shape) == ("float64", (3,))


def test_send_and_receive_name_each_other(ranks):
    merged = CommLog.merge(ranks[:2].run(some_operations))
    (send,), (receive,) = ([event for event in merged.events if event.op == op] for op in ("send", "recv"))
    assert (send.rank, send.peer, send.payload_bytes) == (0, 1, 16)
    assert (receive.rank, receive.peer, receive.payload_bytes) == (1, 0, 16)


def test_all_ranks_share_one_clock(ranks):
    """The spans of one all_reduce overlap on all ranks, or the clock is not one."""
    merged = CommLog.merge(ranks.run(some_operations))
    first = [event for event in merged.events if event.op == "all_reduce" and event.payload_bytes == 48]
    assert len(first) == 4 and max(event.start for event in first) <= min(event.end for event in first)


def test_an_operation_still_under_way_is_waited_for(ranks):
    def step():
        with record_comms() as recorder:
            work = dist.all_reduce(torch.ones(1000), async_op=True)
        work.wait()
        return recorder.log.count()

    assert ranks.run(step) == [1, 1, 1, 1]


def test_the_log_has_the_order_of_the_calls_even_if_a_later_one_completes_first():
    where = {"rank": 0, "group": "world", "group_ranks": (0, 1), "caller": "a.py:1"}
    what = {"op": "all_gather", "payload_bytes": 8, "dtype": "float32", "shape": (2,)}
    one = CommEvent(**where, **what, sequence=0, start=1.0, end=4.0)
    two = replace(one, op="all_reduce", sequence=1, start=2.0, end=3.0)
    recorder = CommRecorder()
    recorder.add(two)
    recorder.add(one)
    assert recorder.log.events == (one, two)


def test_a_failing_block_stops_the_recording(ranks):
    def step():
        with pytest.raises(KeyError), record_comms() as recorder:
            raise KeyError
        dist.barrier()
        return recorder.log.count()

    assert ranks.run(step) == [0, 0, 0, 0]


def test_outside_a_rank_it_says_so():
    with pytest.raises(ValueError, match="found no process group; call it inside a rank"), record_comms():
        pass
