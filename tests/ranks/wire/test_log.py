"""The log: one event for each completed operation, with what was handed in, by whom, and from which line."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from helpers.ranks.wire import wire
from helpers.records import CommLog


def logged(function, *args):
    """The events of `function(rank, n)` on this rank."""
    events = []
    stop = wire.subscribe(events.append)
    try:
        function(dist.get_rank(), dist.get_world_size(), *args)
    finally:
        stop()
    return events


def one_of_each(rank, n):
    x, parts, wide = torch.ones(6), [torch.ones(6) for _ in range(n)], torch.ones(6 * n)
    dist.all_reduce(x)
    dist.broadcast(x, 1)
    dist.reduce(x, 1, dist.ReduceOp.MAX)
    dist.all_gather(parts, x)
    dist.gather(x, parts if rank == 1 else None, dst=1)
    dist.scatter(x, parts if rank == 1 else None, src=1)
    dist.reduce_scatter(x, parts)
    dist.all_to_all_single(torch.empty(6 * n), wide)
    dist.barrier()


class Slim(torch.Tensor):
    """A tensor that says that it has one element."""

    def numel(self):
        return 1

    @property
    def shape(self):
        return torch.Size([1])


def slim_sum(rank, n):
    dist.all_reduce(torch.ones(6).as_subclass(Slim))


def test_a_tensor_that_lies_about_its_size_is_logged_with_all_its_bytes(ranks):
    for events in ranks[:2].run(logged, slim_sum):
        assert [(e.op, e.payload_bytes, e.shape) for e in events] == [("all_reduce", 24, (6,))]


def test_every_operation_is_one_event_with_its_payload(ranks):
    for rank, events in enumerate(ranks[:3].run(logged, one_of_each)):
        assert [(e.op, e.payload_bytes) for e in events] == [
            ("all_reduce", 24),
            ("broadcast", 24),
            ("reduce", 24),
            ("all_gather", 24),
            ("gather", 24),
            ("scatter", 24),
            ("reduce_scatter", 72),
            ("all_to_all", 72),
            ("barrier", 0),
        ]
        assert [e.peer for e in events] == [None, 1, 1, None, 1, 1, None, None, None]
        assert [e.reduce_op for e in events][:3] == ["SUM", None, "MAX"]
        assert {(e.rank, e.group, e.group_ranks) for e in events} == {(rank, "0", (0, 1, 2))}
        first = events[0].sequence
        assert [e.sequence for e in events] == list(range(first, first + 9))
        assert all(e.start <= e.end for e in events)
        assert (events[0].dtype, events[0].shape, events[-1].dtype, events[-1].shape) == ("float32", (6,), "", ())
        CommLog(events=tuple(events))


def messages(rank, n):
    if rank == 0:
        dist.send(torch.ones(3, dtype=torch.float64), 1)
    else:
        dist.recv(torch.ones(3, dtype=torch.float64))


def test_messages_name_the_other_side(ranks):
    sent, received = ranks[:2].run(logged, messages)
    assert [(e.op, e.peer, e.payload_bytes) for e in sent] == [("send", 1, 24)]
    assert [(e.op, e.peer, e.payload_bytes) for e in received] == [("recv", 0, 24)]


def in_sub_group(rank, n):
    group = dist.new_group([0, 2])
    if rank != 1:
        dist.broadcast(torch.ones(2), src=2, group=group)


def test_a_sub_group_is_logged_with_global_ranks(ranks):
    events = ranks[:3].run(logged, in_sub_group)
    assert [[(e.rank, e.group_ranks, e.peer, e.sequence) for e in each] for each in events] == [
        [(0, (0, 2), 2, 0)],
        [],
        [(2, (0, 2), 2, 0)],
    ]


def helper_of_the_learner():
    dist.all_reduce(torch.ones(1))


def from_a_helper(rank, n):
    helper_of_the_learner()


def from_backward(rank, n):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()


def line_of(function, offset):
    return f"test_log.py:{function.__code__.co_firstlineno + offset}"


def test_the_caller_is_the_first_line_outside_torch_and_the_wire(ranks):
    assert ranks[:2].run(logged, from_a_helper)[0][0].caller == line_of(helper_of_the_learner, 1)


def through_a_decorator(rank, n):
    dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * n))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_decorators_on_the_way_into_torch_are_not_the_caller(ranks):
    """torch 2.13 wraps its older names with typing_extensions.deprecated."""
    assert ranks[:2].run(logged, through_a_decorator)[0][0].caller == line_of(through_a_decorator, 1)


def test_a_bucket_of_ddp_is_called_by_the_line_of_backward(ranks):
    events = ranks[:2].run(logged, from_backward)[0]
    bucket = events[-1]
    assert (bucket.op, bucket.payload_bytes, bucket.caller) == ("all_reduce", 24, line_of(from_backward, 2))


def without_waiting(rank, n):
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(5)]
    works[-1].wait()
    for work in works:
        work.wait()


def test_an_event_is_there_before_its_wait_returns(ranks):
    for _ in range(20):
        assert [len(events) for events in ranks[:2].run(logged, without_waiting)] == [5, 5]


def nobody_waits(rank, n):
    """The watch comes by and has a thread follow the send; the recorder has to stay until then."""
    if rank == 0:
        dist.isend(torch.ones(2), 1)
    else:
        dist.recv(torch.ones(2), 0)
    deadline = time.monotonic() + 20
    while wire.pending() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_send_that_nobody_waits_for_is_logged_too(ranks):
    assert [[e.op for e in events] for events in ranks[:2].run(logged, nobody_waits)] == [["send"], ["recv"]]


def a_listener_that_fails(rank, n):
    def fail(event):
        raise ValueError("a bug in the listener")

    stop = wire.subscribe(fail)
    try:
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == n
    finally:
        stop()


def test_a_failing_listener_harms_nobody_and_is_shown(ranks, capsys):
    events = ranks[:2].run(logged, a_listener_that_fails)
    assert [len(each) for each in events] == [1, 1]
    assert "a bug in the listener" in capsys.readouterr().out


def after_stopping(rank, n):
    stop = wire.subscribe(pytest.fail)
    stop()
    stop()
    dist.all_reduce(torch.ones(1))


def test_stopping_stops_and_may_be_repeated(ranks):
    assert [len(events) for events in ranks[:2].run(logged, after_stopping)] == [1, 1]


def a_failed_operation(rank, n):
    try:
        dist.all_reduce(torch.eye(2).to_sparse_csr())
    except RuntimeError:
        return


def test_what_was_never_issued_is_not_logged(ranks):
    assert ranks[:2].run(logged, a_failed_operation) == [[], []]


def gathered_payload(rank, n):
    dist.all_gather_into_tensor(torch.empty(2 * n), torch.ones(2))
    dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * n))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_payload_is_what_a_rank_hands_in(world):
    n = len(world)
    for events in world.run(logged, gathered_payload):
        assert [(e.op, e.payload_bytes) for e in events] == [("all_gather", 8), ("reduce_scatter", 8 * n)]


def not_awaited():
    """What is counted after each step: nobody waits, wait() is called, and the end is seen."""
    x, before = torch.ones(2), wire.num_not_awaited()
    dist.all_reduce(x)
    counts, work = [wire.num_not_awaited() - before], dist.all_reduce(x, async_op=True)
    counts.append(wire.num_not_awaited() - before)
    work.wait()
    counts.append(wire.num_not_awaited() - before)
    work = dist.all_reduce(x, async_op=True)
    dist.barrier()
    counts.append(wire.num_not_awaited() - before)  # the sum is there, and nobody has asked for it
    work.wait()
    work.wait()
    counts.append(wire.num_not_awaited() - before)
    dist.all_reduce(x, async_op=True).get_future().wait()
    counts.append(wire.num_not_awaited() - before)
    return counts


def test_operations_are_counted_until_the_program_waits_for_them(ranks):
    for counts in ranks[:2].run(not_awaited):
        assert counts == [0, 1, 0, 1, 0, 0]
