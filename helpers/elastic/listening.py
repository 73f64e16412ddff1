"""Reads a generation's heartbeats along with the agent, for a picture of them."""

from __future__ import annotations

import time

import torch.distributed as dist

from helpers.elastic.heartbeat import heard
from helpers.elastic.job import Job
from helpers.elastic.member import connect

Rows = dict[int, list[tuple[float, int, bool]]]


def listen(job: Job) -> Rows:
    """Rank to its heartbeats in the first generation of a started job: (seconds, step, whether it waits).

    Returns when the generation is over; what came later than the agent's verdict is not in it.
    """
    store, start = dist.PrefixStore("generation 0", connect(job.agent.store.port)), 0.0
    rows: Rows = {}
    numbers: dict[int, int] = {}
    while not job.account.generations and not job.agent.over.is_set():
        for rank in range(job.settings.plan.world_size):
            beat = heard(store, rank)
            if beat is None or not beat.step or numbers.get(rank) == beat.number:
                continue
            start, numbers[rank] = start or time.monotonic(), beat.number
            rows.setdefault(rank, []).append((time.monotonic() - start, beat.step, beat.waits))
        time.sleep(0.02)
    return dict(sorted(rows.items()))
