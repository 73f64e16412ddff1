"""A straggler and a dropped rank on purpose; and sentences for a wire that is asked for something it cannot do."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from helpers.ranks import RankError, Ranks
from helpers.ranks.wire import wire
from helpers.ranks.wire.gloo import Waiters
from helpers.ranks.wire.session import Fault, WireConfig
from helpers.ranks.wire.wire import World
from helpers.specs import Link


def config(tmp_path, **fields):
    return WireConfig(**{"rank": 0, "world_size": 2, "board_dir": str(tmp_path), **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank": 2}, "rank 2 is not below world_size 2; ranks start at 0"),
        ({"rank": -1}, "rank -1 is not below"),
        ({"inner": "mpi"}, "inner is 'mpi', but it must be 'gloo' or 'nccl'"),
        ({"board_dir": "/nowhere/at/all"}, "'/nowhere/at/all' is no folder; make it, or pass check=False"),
        ({"inner": "nccl", "link": Link(latency=0, bandwidth=1)}, "emulated on the CPU only"),
        ({"slow": {"one": 0.2}}, "it maps a rank to seconds"),
        ({"slow": {1: {"delay": 0.2}}}, "a dict of 'seconds', 'op' and 'drop_after'"),
    ],
)
def test_a_config_that_cannot_work_is_a_sentence(tmp_path, fields, words):
    with pytest.raises(ValueError) as caught:
        config(tmp_path, **fields)
    assert words in str(caught.value)


def test_without_the_check_no_folder_is_needed():
    WireConfig(rank=0, world_size=1, board_dir="/nowhere/at/all", check=False)


@pytest.mark.parametrize("key", [1, "1"])
def test_a_fault_is_of_one_rank(key):
    assert Fault.of({key: 0.2}, 1) == Fault(seconds=0.2)
    assert Fault.of({key: 0.2}, 0) is None
    assert Fault.of({key: {"op": "barrier", "seconds": 1}}, 1) == Fault(op="barrier", seconds=1)


def test_only_the_named_operation_is_late(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    fault = Fault(seconds=0.3, op="barrier")
    fault.apply("all_reduce", 0)
    fault.apply("barrier", 1)
    assert slept == [0.3]


def test_a_rank_is_dropped_after_so_many_operations(monkeypatch):
    killed = []
    monkeypatch.setattr("helpers.ranks.wire.session.os.kill", lambda pid, number: killed.append(number))
    fault = Fault(drop_after=2)
    for done in range(3):
        fault.apply("all_reduce", done)
    assert len(killed) == 1


def starts():
    events = []
    stop = wire.subscribe(events.append)
    begun = time.perf_counter()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    stop()
    return begun, *events


def test_a_straggler_comes_late_and_the_others_wait_for_it():
    with Ranks(2, device="cpu", slow={1: 0.2}, timeout=60, quiet=True) as pool:
        prompt, late = pool.run(starts)
    begun, first, second = late
    assert first.start >= begun + 0.2 and second.start >= first.end + 0.2
    assert prompt[1].end >= first.start and prompt[2].end >= second.start


def some_operations():
    for _ in range(5):
        dist.all_reduce(torch.ones(1))


def test_a_dropped_rank_dies_and_is_named():
    with Ranks(2, device="cpu", slow={1: {"drop_after": 3}}, timeout=60, quiet=True) as pool:
        with pytest.raises(RankError) as caught:
            pool.run(some_operations)
    assert (caught.value.kind, caught.value.rank) == ("died", 1), str(caught.value)


# -- the wire itself, in one process -----------------------------------------------------------------------------------
def test_before_it_is_installed_there_is_nothing(monkeypatch):
    monkeypatch.setattr(wire, "_world", None)
    assert (wire.pending(), wire.counters(), wire.broken()) == ([], {}, None)
    wire.fail_pending("nobody listens"), wire.cut(), wire.reset()
    with pytest.raises(RuntimeError, match="call wire.install"):
        wire._create(None)


def test_a_closed_world_leaves_no_thread(tmp_path):
    world = World(config(tmp_path, link=Link(latency=0, bandwidth=1e9)), Waiters())
    world.close()
    deadline = time.monotonic() + 10
    while any(name in {"wire watch", "emulated link"} for name in thread_names()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not {"wire watch", "emulated link"} & thread_names()


def thread_names():
    import threading

    return {thread.name for thread in threading.enumerate()}


def forget_all():
    dist.all_reduce(torch.ones(1))
    before = wire.counters()
    wire.reset()
    return before["0"] > 0, wire.counters(), wire.pending()


def test_reset_forgets():
    with Ranks(1, device="cpu", timeout=60, quiet=True) as pool:
        assert pool.run(forget_all) == [(True, {}, [])]


def without_check():
    x = torch.ones(2)
    dist.all_reduce(x)
    dist.barrier()
    return x.tolist(), wire.counters(), wire.pending()


def test_without_the_check_the_log_still_counts():
    with Ranks(2, device="cpu", check=False, timeout=60, quiet=True) as pool:
        assert pool.run(without_check) == [([2.0, 2.0], {"0": 2}, [])] * 2
