"""Records every operation of torch.distributed that one rank issues, without a change of the code that issues them.

On the course's ranks, torch.distributed's functions are wrapped by the module `wire` (helpers/ranks/wire), which
reports each operation to the recorders that have subscribed. Chapters, tests, benchmarks, the grader and the `train`
command count messages and bytes with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

from helpers.records import CommEvent, CommLog

PENDING_SECONDS = 5.0  # how long the end of a recording waits for operations that are still in flight


class CommRecorder:
    """Collects the events of one rank. `log` can be read while the recording runs and after it."""

    def __init__(self) -> None:
        self._events: list[CommEvent] = []

    def add(self, event: CommEvent) -> None:
        """Add one event. `wire` calls it, on any thread, once an operation has completed."""
        self._events.append(event)

    @property
    def log(self) -> CommLog:
        """What was recorded so far, in the order of the calls. `CommLog.merge(ranks.run(step))` joins all ranks' logs.

        Asynchronous operations may complete in another order than that in which they were called.
        """
        return CommLog(events=tuple(sorted(self._events, key=lambda event: event.start)))


@contextmanager
def record_comms() -> Iterator[CommRecorder]:
    """Record the block, on a rank: `with record_comms() as recorder: step()`, then read `recorder.log`, a CommLog.

    It has each operation with its payload in bytes, group, the caller's line, start and end. The end of the block waits
    at most 5 seconds for operations that are still in flight. Raises ValueError outside a rank.
    """
    if not dist.is_initialized():
        raise ValueError("record_comms found no process group; call it inside a rank: in %%ranks or in ranks.run")
    from helpers.ranks.wire import wire  # only ranks have loaded it, and the notebook need not

    recorder = CommRecorder()
    unsubscribe = wire.subscribe(recorder.add)
    try:
        yield recorder
        deadline = time.monotonic() + PENDING_SECONDS
        while wire.pending() and time.monotonic() < deadline:
            time.sleep(0.001)
    finally:
        unsubscribe()


def payload_of(op: str, function: Callable[..., object], *arguments: object) -> int:
    """On a rank: the payload in bytes that `function(*arguments)` passes to `op`, such as "all_reduce"."""
    with record_comms() as recorder:
        function(*arguments)
    return recorder.log.payload_bytes(op)
