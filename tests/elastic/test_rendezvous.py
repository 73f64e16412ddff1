"""The rendezvous and the heartbeat on a store in memory, with threads in the place of processes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from helpers.elastic import Heartbeat, Rendezvous, regroup
from helpers.elastic.heartbeat import last_beat
from helpers.specs import Plan


def join(store, generation, num_ranks, num_processes, limit=30.0):
    with ThreadPoolExecutor(num_processes) as pool:
        rendezvous = [Rendezvous(store, generation, limit=limit) for _ in range(num_processes)]
        return list(pool.map(lambda one: one.join(num_ranks), rendezvous))


def test_each_process_gets_a_rank_of_its_own_and_the_rest_are_spares():
    ranks = join(dist.HashStore(), 0, num_ranks=3, num_processes=5)
    assert sorted(rank for rank in ranks if rank is not None) == [0, 1, 2] and ranks.count(None) == 2


def test_a_generation_sees_nothing_of_the_one_before():
    store = dist.HashStore()
    join(store, 0, num_ranks=3, num_processes=3)
    assert sorted(join(store, 1, num_ranks=2, num_processes=2)) == [0, 1]


def test_a_rendezvous_to_which_too_few_come_ends_by_itself():
    with pytest.raises(dist.DistStoreError):
        Rendezvous(dist.HashStore(), 0, limit=0.05).join(2)


def beat_until(heartbeat, store, done):
    """The last beat, once one is as asked."""
    while not ((beat := last_beat(store, heartbeat.rank)) and done(beat)):
        pass
    return beat


def test_a_heartbeat_goes_on_while_its_main_thread_hangs_and_says_so():
    store, free = dist.HashStore(), threading.Event()
    heartbeat = Heartbeat(store, 3, every=0.01)
    assert last_beat(store, 3) is None
    with heartbeat:
        heartbeat.step = 7
        busy = beat_until(heartbeat, store, lambda beat: beat.number > 3 and beat.is_busy)  # this very loop computes
        assert busy.step == 7 and not busy.is_waiting
        listener = threading.Thread(
            target=lambda: (beat_until(heartbeat, store, lambda beat: not beat.is_busy), free.set())
        )
        listener.start()
        assert free.wait(60)  # the main thread stands still here, and still beats come
    assert heartbeat.number == last_beat(store, 3).number and not heartbeat.thread.is_alive()


@pytest.mark.parametrize(
    "plan, alive, then",
    [
        (Plan(dp=4), 4, Plan(dp=4)),
        (Plan(dp=4), 6, Plan(dp=4)),
        (Plan(dp=4), 3, Plan(dp=3)),
        (Plan(dp=8), 7, Plan(dp=6)),  # 5 and 7 do not divide 12 sequences
        (Plan(dp=2, tp=2), 3, Plan(dp=1, tp=2)),
        (Plan(dp=2, pp=2, num_microbatches=4), 3, Plan(dp=1, pp=2, num_microbatches=4)),
        (Plan(tp=4), 3, None),
    ],
)
def test_those_who_are_left_keep_the_batch_and_the_copy(plan, alive, then):
    assert regroup(plan, alive, batch=12) == then
