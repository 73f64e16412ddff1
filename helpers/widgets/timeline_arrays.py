"""A Timeline as binary arrays, the form in which it travels to the browser: 20,000 spans are a few arrays, not objects.

Spans are sorted into tracks: rank by rank, compute before communication, and spans that overlap in different rows. So
within a track starts and ends ascend, and the browser finds what runs at an instant by bisection.

Arrays are little-endian on every machine that a browser runs on: "d" = Float64, "I" = Uint32, "B" = Uint8.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from itertools import groupby

from helpers.records import KINDS, LANES, MEMORY_KINDS, Holding, Span, Timeline

TOUCHING = 1e-3  # of the whole timeline: an overlap shorter than this is too little to see and opens no new row


def encode(timeline: Timeline, names: dict[str, int]) -> dict[str, object]:
    """Arrays of the spans, the tracks that say which span is where, and what each rank holds. Seconds from 0, bytes.

    names: the table of names -> number, shared by all timelines of a picture; new names are added to it.
    """
    tracks, spans = [], []
    for rank, lane, row, num_rows, members in _tracks(timeline):
        place = {"rank": rank, "lane": LANES.index(lane), "row": row, "rows": num_rows}
        tracks.append(place | {"first": len(spans), "last": len(spans) + len(members)})
        spans += members
    zero = timeline.start
    return {
        "ranks": list(timeline.ranks),
        "duration": timeline.duration,
        "tracks": tracks,
        "start": array("d", (span.start - zero for span in spans)).tobytes(),
        "end": array("d", (span.end - zero for span in spans)).tobytes(),
        "num_bytes": array("d", (span.num_bytes for span in spans)).tobytes(),
        "name": array("I", (names.setdefault(span.name, len(names)) for span in spans)).tobytes(),
        "kind": array("B", (KINDS.index(span.kind) for span in spans)).tobytes(),
        "idle": [_idle(timeline, rank) for rank in timeline.ranks],
        "held": [_held(timeline, rank) for rank in timeline.ranks] if timeline.held else [],
    }


def _tracks(timeline: Timeline) -> list[tuple[int, str, int, int, list[Span]]]:
    """(rank, lane, row, number of rows in this lane, spans in order) of each track, from the top."""

    def lane(span: Span) -> tuple[int, int]:
        return span.rank, LANES.index(span.lane)

    found, touching = [], TOUCHING * timeline.duration
    ordered = sorted(timeline.spans, key=lambda span: (*lane(span), span.start, span.end))
    for (rank, index), members in groupby(ordered, lane):
        rows = rows_without_overlap(list(members), touching)
        found += [(rank, LANES[index], number, len(rows), row) for number, row in enumerate(rows)]
    return found


def rows_without_overlap(spans: Sequence[Span], touching: float = 0.0) -> list[list[Span]]:
    """Spans, sorted by start, each in the first row that is free by then, `touching` seconds more or less."""
    rows: list[list[Span]] = []
    free: list[int] = []  # heap of row numbers
    taken: list[tuple[float, int]] = []  # heap of (end, row number)
    for span in spans:
        while taken and taken[0][0] <= min(span.start + touching, span.end):
            heapq.heappush(free, heapq.heappop(taken)[1])
        if not free:
            heapq.heappush(free, len(rows))
            rows.append([])
        row = heapq.heappop(free)
        rows[row].append(span)
        heapq.heappush(taken, (span.end, row))
    return rows


def _idle(timeline: Timeline, rank: int) -> dict[str, object]:
    """From when to when a rank computes nothing."""
    zero, last = timeline.start, timeline.end
    starts, ends, busy_until = array("d"), array("d"), zero
    compute = [(span.start, span.end) for span in timeline.spans if span.rank == rank and span.lane == "compute"]
    for start, end in [*sorted(compute), (last, last)]:
        if start > busy_until:
            starts.append(busy_until - zero)
            ends.append(start - zero)
        busy_until = max(busy_until, end)
    return {"rank": rank, "start": starts.tobytes(), "end": ends.tobytes()}


def _held(timeline: Timeline, rank: int) -> dict[str, object]:
    """Steps of what a rank holds: `times`, and `sums`, one number for each of MEMORY_KINDS from each time on."""
    changes: dict[float, list[int]] = {0.0: [0] * len(MEMORY_KINDS)}
    zero, last = timeline.start, timeline.end
    for holding in timeline.held:
        if holding.rank == rank:
            _add_changes(changes, holding, zero, last)
    totals, times, sums = [0] * len(MEMORY_KINDS), array("d"), array("d")
    for time in sorted(changes):
        totals = [total + change for total, change in zip(totals, changes[time], strict=True)]
        times.append(time)
        sums.extend(totals)
    return {"rank": rank, "times": times.tobytes(), "sums": sums.tobytes()}


def _add_changes(changes: dict[float, list[int]], holding: Holding, zero: float, last: float) -> None:
    """Its bytes come at its start and go at its end; at the end of the timeline nothing goes, as in Timeline.holds."""
    for instant, sign in ((max(holding.start, zero), 1), (max(holding.end, zero), -1)):
        if sign > 0 or instant < last:
            change = changes.setdefault(instant - zero, [0] * len(MEMORY_KINDS))
            change[MEMORY_KINDS.index(holding.kind)] += sign * holding.num_bytes
