"""Traces as Kineto writes them on gloo, of a made-up training step: what they must say is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

BASE = 1_790_857_026_000_000_000  # nanoseconds
FIRST = 4_560_047_582_737.0  # microseconds after them
PARTS = {"data": 0.005, "compute": 0.060, "link": 0.004, "host": 0.001}


class Rank:
    """One rank's file: events at true seconds, on a clock that is ahead by `offset` and drifts."""

    def __init__(self, rank: int, world: int, offset: float, drift: float, host: str):
        self.rank, self.world, self.offset, self.drift, self.host, self.events = rank, world, offset, drift, host, []

    def add(self, name: str, start: float, end: float, cat: str = "cpu_op", tid: int | str = 7, **args: object) -> None:
        start, end = (at + self.offset + self.drift * at for at in (start, end))
        times = {"ts": FIRST + start * 1e6, "dur": (end - start) * 1e6}
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, **times, "args": args})

    def as_json(self) -> dict:
        group = {"pg_name": "0", "pg_size": self.world, "ranks": list(range(self.world))}
        told = {"backend": "gloo", "rank": self.rank, "world_size": self.world, "pg_config": [group]}
        head = {"schemaVersion": 1, "distributedInfo": told, "baseTimeNanoseconds": BASE, "host_name": self.host}
        return head | {"traceEvents": self.events}


def make(
    folder: Path,
    *,
    world: int = 4,
    steps: int = 20,
    extra: Callable[[int, int, str], float] = lambda rank, step, part: 0.0,
    clocks: dict[int, tuple[float, float]] | None = None,
    one_host: bool = True,
    noise: float = 0.0,
) -> Path:
    """Each step: load, forward, two halves of backward with an all-reduce behind each, wait for both, the optimizer.

    extra(rank, step, part): seconds beyond PARTS. noise: up to so many seconds more, of every part of every rank.
    """
    chance, told = random.Random(0), clocks or {}
    ranks = [Rank(r, world, *told.get(r, (0.0, 0.0)), "one" if one_host else f"host{r}") for r in range(world)]
    at = [0.001 * chance.random() for _ in ranks]
    for step in range(steps):
        began = list(at)

        def takes(rank, part, share=1.0, step=step):
            return share * (PARTS[part] + extra(rank, step, part)) + noise * chance.random()

        def works(name, part, share, step=step, at=at, takes=takes):
            for one in ranks:
                end = at[one.rank] + takes(one.rank, part, share)
                cat = "user_annotation" if part == "data" else "cpu_op"
                one.add(name, at[one.rank], end, cat, **({} if part == "data" else {"Input Dims": [[4, 64]]}))
                at[one.rank] = end

        def sends(number, at=at, takes=takes):
            ready = list(at)
            for one in ranks:
                end = max(ready) + takes(one.rank, "link")
                shapes = {"Input Dims": [[[1000 + number]], []]}
                one.add("c10d::allreduce_", at[one.rank], at[one.rank] + 2e-5, **shapes)
                shape = {"Input Dims": [[1000 + number]], "Input type": ["float"]}
                one.add("gloo:all_reduce", at[one.rank] + 3e-5, end, "user_annotation", 90 + number, **shape)
                at[one.rank] += 2e-5
                yield end

        works("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data", 1)
        works("aten::linear", "compute", 0.4)
        works("autograd::engine::evaluate_function: AddmmBackward0", "compute", 0)
        ends = []
        for number in (0, 1):
            works("AddmmBackward0", "compute", 0.3)
            ends.append(list(sends(number)))
        for one in ranks:
            at[one.rank] = max(at[one.rank], *(row[one.rank] for row in ends))
            one.add("Optimizer.step#SGD.step", at[one.rank], at[one.rank] + 0.002, "user_annotation")
            one.add("aten::add_", at[one.rank] + 1e-4, at[one.rank] + 0.0019)
            at[one.rank] += 0.002 + takes(one.rank, "host")
            one.add(f"ProfilerStep#{step + 5}", began[one.rank], at[one.rank], "user_annotation")
    folder.mkdir(parents=True, exist_ok=True)
    for one in ranks:
        name = f"worker{one.rank}.{1_795_417_074_279_479_283 + one.rank}.pt.trace.json"
        (folder / name).write_text(json.dumps(one.as_json()))
    return folder


@pytest.fixture
def made(tmp_path):
    """made(extra=…): a folder with the traces of four ranks."""
    return lambda **how: make(tmp_path / how.pop("name", "run"), **how)
