"""Writes a Timeline in Chrome's trace format, which Perfetto and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
"X" is an event with a start `ts` and a duration `dur`, in microseconds; "M" names processes and threads; "C" is a
counter, which is drawn as a curve. The commands `explain` and `train` offer it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from helpers.records import Span, Timeline

_MICROSECONDS = 1e6  # per second


def to_chrome_trace(timeline: Timeline, path: str | os.PathLike | None = None) -> str:
    """The timeline as JSON text for https://ui.perfetto.dev or chrome://tracing.

    Each rank becomes a process, and each of its lanes a thread. The timeline starts at 0, and the bytes that a rank
    holds become a curve. With `path` the text is also written to that file.
    """
    shifted = timeline.shifted_to_zero()
    events = [*_names(shifted), *(_complete_event(span, shifted.lanes) for span in shifted.spans), *_curves(shifted)]
    other = {"title": timeline.title, "source": timeline.source}
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other})
    if path is not None:
        Path(path).write_text(text)
    return text


def _names(timeline: Timeline) -> Iterator[dict]:
    """The events that name processes and threads."""
    for rank in timeline.ranks:
        yield {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
        for number, lane in enumerate(timeline.lanes):
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": lane}}


def _complete_event(span: Span, lanes: Sequence[str]) -> dict:
    """The event of a span, with start and duration."""
    times = {"ts": span.start * _MICROSECONDS, "dur": span.duration * _MICROSECONDS}
    process = {"pid": span.rank, "tid": lanes.index(span.lane)}
    return {"ph": "X", "name": span.name, "cat": span.kind, **process, **times, "args": {"bytes": span.num_bytes}}


def _curves(timeline: Timeline) -> Iterator[dict]:
    """A counter event with a rank's bytes by kind for each time at which they change."""
    # (time, change of the bytes, what is held): each holding adds its bytes at its start and frees them at its end.
    starts = [(holding.start, holding.num_bytes, holding) for holding in timeline.held]
    changes = starts + [(holding.end, -holding.num_bytes, holding) for holding in timeline.held]
    by_rank: dict[int, dict[str, int]] = {}  # rank -> kind -> bytes held now
    for at, num_bytes, holding in sorted(changes, key=lambda change: change[:2]):  # at one time, what is freed first
        kinds = by_rank.setdefault(holding.rank, {})
        kinds[holding.kind] = kinds.get(holding.kind, 0) + num_bytes
        yield {"ph": "C", "name": "bytes held", "pid": holding.rank, "ts": at * _MICROSECONDS, "args": dict(kinds)}
