"""A Timeline in Chrome's trace format, which Perfetto and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
"X" is a complete event with a start `ts` and a duration `dur`, in microseconds; "M" names processes and threads; "C" is
a counter, which is drawn as a curve.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from helpers.records import Span, Timeline

_MICRO = 1e6


def to_chrome_trace(timeline: Timeline, path: str | os.PathLike | None = None) -> str:
    """JSON text that https://ui.perfetto.dev and chrome://tracing open: one process a rank, one thread a lane.

    The timeline starts at 0; what a rank holds becomes a curve. With `path` the text is also written there.
    """
    shifted = timeline.shifted_to_zero()
    events = [*_names(shifted), *(_complete_event(span, shifted.lanes) for span in shifted.spans), *_curves(shifted)]
    other = {"title": timeline.title, "source": timeline.source}
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other})
    if path is not None:
        Path(path).write_text(text)
    return text


def _names(timeline: Timeline) -> Iterator[dict]:
    for rank in timeline.ranks:
        yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
        for number, lane in enumerate(timeline.lanes):
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": lane}}


def _complete_event(span: Span, lanes: Sequence[str]) -> dict:
    times = {"ts": span.start * _MICRO, "dur": span.duration * _MICRO}
    place = {"pid": span.rank, "tid": lanes.index(span.lane)}
    return {"ph": "X", "name": span.name, "cat": span.kind, **place, **times, "args": {"bytes": span.num_bytes}}


def _curves(timeline: Timeline) -> Iterator[dict]:
    """Bytes held by kind, at each change."""
    changes = [(one.start, one.num_bytes, one) for one in timeline.held]
    changes += [(one.end, -one.num_bytes, one) for one in timeline.held]
    held: dict[int, dict[str, int]] = {}
    for at, num_bytes, one in sorted(changes, key=lambda change: change[:2]):
        now = held.setdefault(one.rank, {})
        now[one.kind] = now.get(one.kind, 0) + num_bytes
        yield {"ph": "C", "name": "bytes held", "pid": one.rank, "ts": at * _MICRO, "args": dict(now)}
