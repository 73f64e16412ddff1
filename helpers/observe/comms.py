"""Record every operation of torch.distributed that this rank issues. The code under observation does not change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

from helpers.ranks import wire
from helpers.records import CommEvent, CommLog

_GRACE = 5.0  # seconds that the end of a recording gives to operations which are still under way


class CommRecorder:
    """Collects the events of one rank. `log` may be read while the recording runs and after it."""

    def __init__(self) -> None:
        self._events: list[CommEvent] = []

    def add(self, event: CommEvent) -> None:
        """Called by the wire, on any thread, once an operation has completed."""
        self._events.append(event)

    @property
    def log(self) -> CommLog:
        """What was recorded so far. Joining ranks: `CommLog.merge(ranks.run(step))`."""
        return CommLog(events=tuple(self._events))


@contextmanager
def record_comms() -> Iterator[CommRecorder]:
    """Inside a rank: `with record_comms() as recorder: step()`, then `recorder.log` is a CommLog.

    The log has what the wire saw: payload (bytes handed in), group, the caller's line, start and end. An operation that
    is still under way when the block ends is waited for, at most 5 seconds. ValueError outside a rank.
    """
    if not dist.is_initialized():
        raise ValueError("record_comms found no process group; call it inside a rank: in %%ranks or in ranks.run")
    recorder = CommRecorder()
    unsubscribe = wire.subscribe(recorder.add)
    try:
        yield recorder
        _wait_for_pending()
    finally:
        unsubscribe()


def payload_of(op: str, function: Callable[..., object], *arguments: object) -> int:
    """Inside a rank: the bytes that it hands to `op` ("all_reduce", "send", …) while `function(*arguments)` runs."""
    with record_comms() as recorder:
        function(*arguments)
    return recorder.log.payload_bytes(op)


def _wait_for_pending() -> None:
    give_up = time.monotonic() + _GRACE
    while wire.pending() and time.monotonic() < give_up:
        time.sleep(0.001)
