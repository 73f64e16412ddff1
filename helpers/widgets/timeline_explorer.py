"""Provides TimelineExplorer, an interactive viewer of Timelines: zoom, hover over spans, and move a play head.

A Timeline has spans: what a rank computes, sends or waits for, from when to when. Each has a lane (compute or
communication) and a kind ("forward"), which is its colour. A Timeline may also have `held`, what the memory of a rank
holds over time.

Python sends the spans as binary arrays (`encode`), the palette, the units and the words. All interaction happens in the
browser (`static/timeline_explorer.js`, which `timeline_view.py` brings into a notebook), so that it goes on while the
kernel is busy. 20,000 spans are a few arrays and not 20,000 objects. The type codes "d", "I" and "B" of `array` are
Float64, Uint32 and Uint8 in JavaScript. The bytes are little-endian, as on every machine that a browser runs on.
"""

from __future__ import annotations

import heapq
import json
import math
from array import array
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from helpers.draw import Scene, timeline_scene
from helpers.draw.palette import (
    DARK,
    GREY,
    LIGHT,
    MUTED_OPACITY,
    PAINTS,
    PANEL_OPACITY,
    RULE_OPACITY,
    kind_word,
)
from helpers.draw.palette import words as picture_words  # texts by name: learner/words/draw.yaml
from helpers.draw.timelines import exposed_sentence, panel_titles, shared_title
from helpers.learner.words import book
from helpers.quantities.units import DECIMAL, SECONDS, format_bytes, format_count, format_seconds
from helpers.records import KINDS, LANES, MEMORY_KINDS, Holding, Span, Timeline
from helpers.widgets.explorer import ShownByWidget, with_sentence

if TYPE_CHECKING:
    import ipywidgets

words = book("timelines").section("viewer")  # the texts that are shown, by name: learner/words/timelines.yaml
SHARED = ("playhead", "selected_rank", "zoom")  # attributes that the learner changes in the browser, and a cell here


class TimelineExplorer(ShownByWidget):
    """Any Timelines, predicted, emulated or recorded, one above the other on one axis that starts at 0.

    A timeline may also be the text that `Timeline.to_json` wrote. Instead of bad input, a message is shown. Without a
    front end, `.playhead` (seconds), `.selected_rank` and `.zoom` (start and end, seconds) can be set and read;
    `.reading` says what the selected rank does and stores at the play head, and `.text` is all of it as text.
    """

    TEXT = "[widget] TimelineExplorer: zoom, hover over spans, move the play head and see what each rank does and holds"

    def __init__(self, *timelines: Timeline | str | dict, title: str = "") -> None:
        self.timelines: tuple[Timeline, ...] = ()
        self._title = title
        self.error, self.data = "", {}  # what is wrong with the input, and all that the front end needs
        self.playhead, self.selected_rank, self.zoom = 0.0, 0, (0.0, 0.0)
        try:
            self.timelines = _checked_timelines(timelines)
        except ValueError as error:
            self.error = str(error)
            return
        longest = max(timeline.duration for timeline in self.timelines) or 1e-9  # never 0, since it is divided by
        self.title = title or shared_title(list(self.timelines))
        self.selected_rank = min(rank for timeline in self.timelines for rank in timeline.ranks)
        self.data, self.zoom = self._data(longest), (0.0, longest)

    def __setattr__(self, name: str, value: Any) -> None:
        """Let the widget, where there is one, have the same play head, rank and zoom."""
        super().__setattr__(name, value)
        if name in SHARED and self._widget is not None:
            setattr(self._widget, name, value)

    def _make_widget(self) -> ipywidgets.Widget:
        from helpers.widgets.timeline_view import TimelineView

        return TimelineView(self)

    def _data(self, longest: float) -> dict[str, Any]:
        """All that the front end needs. Colours and units are sent, so that the JavaScript does not repeat them."""
        names: dict[str, int] = {}  # the name of a span -> its number; filled by `encode`
        panels = [
            encode(timeline, names) | {"title": title, "source": timeline.source, "exposed": exposed_sentence(timeline)}
            for timeline, title in self._titled
        ]
        paints = {
            kind: asdict(paint) | {"overlay": paint.overlay, "edge": paint.edge, "word": kind_word(kind)}
            for kind, paint in PAINTS.items()
        }
        theme = {"light_ink": LIGHT.ink, "light_surface": LIGHT.surface, "dark_ink": DARK.ink}
        theme |= {"dark_surface": DARK.surface, "grey": GREY, "muted_opacity": MUTED_OPACITY}
        theme |= {"panel_opacity": PANEL_OPACITY, "rule_opacity": RULE_OPACITY}
        return {
            "title": self.title,
            "summary": self.sentence,
            "end": longest,
            "panels": panels,
            "names": list(names),
            "kinds": list(KINDS),
            "lanes": [picture_words(f"lane.{lane}") for lane in LANES],
            "memory_kinds": list(MEMORY_KINDS),
            "paints": paints,
            "theme": theme,
            "units": {"seconds": SECONDS, "bytes": DECIMAL},
            # str takes a text in the learner's language.
            "words": {name: str(text) for name, text in words.items()} | {"table": picture_words("table")},
            "rows": self.rows,
        }

    @property
    def _titled(self) -> list[tuple[Timeline, str]]:
        """Each timeline with its title, which says at least whether it is predicted, emulated or recorded."""
        return list(zip(self.timelines, panel_titles(list(self.timelines)), strict=True))

    @property
    def scene(self) -> Scene:
        """The whole picture, not zoomed. Raises ValueError, with the message that is shown, for bad input."""
        if self.error:
            raise ValueError(self.error)
        return timeline_scene(*self.timelines, title=self._title)

    @property
    def sentence(self) -> str:
        """What is exposed in each timeline, or what is wrong with the input."""
        parts = [
            picture_words("panel_of", title=title, says=exposed_sentence(timeline)) for timeline, title in self._titled
        ]
        return self.error or " ".join(parts)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The table below the picture: one row per timeline and rank."""
        return [_row(timeline, title, rank) for timeline, title in self._titled for rank in timeline.ranks]

    @property
    def reading(self) -> str:
        """What the selected rank does and stores at the play head, in each timeline that has this rank."""
        rank = self.selected_rank
        shown = [(timeline, title) for timeline, title in self._titled if rank in timeline.ranks]
        parts = [_at_playhead(timeline, title, rank, self.playhead) for timeline, title in shown]
        # said: the sentences to join, one for each timeline.
        return words("reading", time=format_seconds(self.playhead), rank=rank, said=parts)

    @property
    def text(self) -> str:
        """Title, sentence, reading and table as plain text; for bad input the message alone."""
        if self.error:
            return self.error
        lines = [", ".join(f"{name} {value}" for name, value in row.items()) for row in self.rows]
        return "\n".join([self.title, self.sentence, self.reading, *lines])

    @property
    def saved(self) -> Scene:
        """The whole picture; for bad input the message."""
        return with_sentence(None, self.error) if self.error else self.scene


def _checked_timelines(given: Sequence[object]) -> tuple[Timeline, ...]:
    """The timelines, with those given as JSON text parsed. Raises ValueError for anything that cannot be shown."""
    if not given:
        raise ValueError("TimelineExplorer got no timeline; give one or more, such as TimelineExplorer(predicted)")
    return tuple(_checked_timeline(number, timeline) for number, timeline in enumerate(given))


def _checked_timeline(number: int, given: object) -> Timeline:
    """One timeline, parsed if need be; `number` is its place among the arguments, for the message."""
    timeline = given if isinstance(given, Timeline) else _parsed_timeline(number, given)
    if not timeline.spans:
        raise ValueError(f"timeline {number} has no span, so there is nothing to show; did the recorded block run?")
    if not all(math.isfinite(instant) for span in timeline.spans for instant in (span.start, span.end)):
        raise ValueError(f"timeline {number} has a span that never starts or never ends; give seconds that are finite")
    return timeline


def _parsed_timeline(number: int, given: object) -> Timeline:
    """A Timeline from the text that `Timeline.to_json` wrote, or from what `json.loads` made of it."""
    if not isinstance(given, str | dict):
        raise ValueError(
            f"argument {number} of TimelineExplorer is a {type(given).__name__}; give a Timeline, or the text that "
            "Timeline.to_json wrote"
        )
    try:
        return Timeline.from_json(json.dumps(given) if isinstance(given, dict) else given)
    except json.JSONDecodeError as error:
        raise ValueError(f"timeline {number} is a text that is no JSON ({error}); give what to_json wrote") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"timeline {number} cannot be read: {error}") from error


def _row(timeline: Timeline, title: str, rank: int) -> dict[str, str]:
    """A row of the table: how long a rank computes, what of its communication is exposed, when it does nothing."""
    messages = [span for span in timeline.for_rank(rank).spans if span.lane == "communication"]
    return {
        words("timeline"): title,
        "rank": str(rank),
        words("computes_for"): format_seconds(timeline.busy(rank)),
        words("exposed"): format_seconds(timeline.exposed_communication(rank)),
        words("nothing"): format_seconds(timeline.idle(rank)),
        words("messages"): format_count(len(messages)),
        words("payload"): format_bytes(sum(span.num_bytes for span in messages)),
    }


def _at_playhead(timeline: Timeline, title: str, rank: int, playhead: float) -> str:
    """A sentence on what a rank computes, communicates and stores at this instant (seconds)."""
    if playhead > timeline.duration:
        return picture_words("panel_of", title=title, says=words("over"))  # that the timeline has ended
    instant = min(timeline.start + playhead, timeline.end)
    spans = timeline.at(rank, instant)
    texts = {lane: [_span_text(span) for span in spans if span.lane == lane] for lane in ("compute", "communication")}
    holds = timeline.holds(rank, instant)  # a MemoryBreakdown; kinds that are no memory have no field in it
    kinds = [f"{kind_word(kind)} {format_bytes(size)}" for kind in PAINTS if (size := getattr(holds, kind, 0))]
    total = f"{format_bytes(holds.total)} = " if len(kinds) > 1 else ""
    memory = words("holds", total=total, kinds=kinds or ["0 B"]) if timeline.held else ""  # a list needs an entry
    lanes = {"computes": texts["compute"] or [words("idle")], "sends": texts["communication"] or [words("silent")]}
    return words("computes", title=title, **lanes, holds=memory)


def _span_text(span: Span) -> str:
    """The name of a span, with its bytes if it has any."""
    return words("span", name=span.name, size=format_bytes(span.num_bytes)) if span.num_bytes else span.name


VISIBLE_OVERLAP = 1e-3  # fraction of the timeline: a shorter overlap cannot be seen, so it opens no new row


def encode(timeline: Timeline, names: dict[str, int]) -> dict[str, object]:
    """A Timeline as binary arrays: its spans sorted into tracks, and the memory of each rank. Seconds from 0, bytes.

    A track holds the spans of one rank and lane (compute or communication) that do not overlap. Within it starts and
    ends ascend, so the browser finds what runs at an instant by bisection. names: from a span's name to its number,
    shared by all timelines of a picture; new names are added to it.
    """
    tracks, spans = [], []
    for rank, lane, row, num_rows, members in _tracks(timeline):
        track = {"rank": rank, "lane": LANES.index(lane), "row": row, "rows": num_rows}
        tracks.append(track | {"first": len(spans), "last": len(spans) + len(members)})
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
        "idle": [_idle_arrays(timeline, rank) for rank in timeline.ranks],
        "held": [_memory_arrays(timeline, rank) for rank in timeline.ranks] if timeline.held else [],
    }


def _tracks(timeline: Timeline) -> list[tuple[int, str, int, int, list[Span]]]:
    """The tracks from the top: (rank, lane, row, number of rows in this lane, spans in order)."""

    def place(span: Span) -> tuple[int, int]:
        """The rank, and the place of the lane among LANES."""
        return span.rank, LANES.index(span.lane)

    tracks, tolerance = [], VISIBLE_OVERLAP * timeline.duration
    ordered = sorted(timeline.spans, key=lambda span: (*place(span), span.start, span.end))
    for (rank, index), members in groupby(ordered, place):
        rows = rows_without_overlap(list(members), tolerance)
        tracks += [(rank, LANES[index], number, len(rows), row) for number, row in enumerate(rows)]
    return tracks


def rows_without_overlap(spans: Sequence[Span], tolerance: float = 0.0) -> list[list[Span]]:
    """Distribute spans, which are sorted by start, over rows: each into the first row that is free by then.

    tolerance: seconds by which two spans in one row may overlap.
    """
    rows: list[list[Span]] = []
    free_rows: list[int] = []  # heap of row numbers
    busy_rows: list[tuple[float, int]] = []  # heap of (end, row number)
    for span in spans:
        # Free the rows whose last span ends by now. A span shorter than the tolerance must not overlap completely.
        while busy_rows and busy_rows[0][0] <= min(span.start + tolerance, span.end):
            heapq.heappush(free_rows, heapq.heappop(busy_rows)[1])
        if not free_rows:
            heapq.heappush(free_rows, len(rows))
            rows.append([])
        row = heapq.heappop(free_rows)
        rows[row].append(span)
        heapq.heappush(busy_rows, (span.end, row))
    return rows


def _idle_arrays(timeline: Timeline, rank: int) -> dict[str, object]:
    """The intervals in which a rank computes nothing."""
    zero, last = timeline.start, timeline.end
    starts, ends, busy_until = array("d"), array("d"), zero
    compute = [(span.start, span.end) for span in timeline.spans if span.rank == rank and span.lane == "compute"]
    for start, end in [*sorted(compute), (last, last)]:  # the end of the timeline closes the last interval
        if start > busy_until:
            starts.append(busy_until - zero)
            ends.append(start - zero)
        busy_until = max(busy_until, end)
    return {"rank": rank, "start": starts.tobytes(), "end": ends.tobytes()}


def _memory_arrays(timeline: Timeline, rank: int) -> dict[str, object]:
    """The memory of a rank as a step function: `times`, and `sums`, the bytes of each of MEMORY_KINDS from then on."""
    changes: dict[float, list[int]] = {0.0: [0] * len(MEMORY_KINDS)}  # second -> bytes more or less, for each kind
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
    """Add the bytes where a holding starts and subtract them where it ends.

    A holding that lasts to the end of the timeline (`last`) is never subtracted, because it was not freed.
    """
    for instant, sign in ((max(holding.start, zero), 1), (max(holding.end, zero), -1)):
        if sign > 0 or instant < last:
            change = changes.setdefault(instant - zero, [0] * len(MEMORY_KINDS))
            change[MEMORY_KINDS.index(holding.kind)] += sign * holding.num_bytes
