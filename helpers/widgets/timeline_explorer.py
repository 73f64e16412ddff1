"""The timeline viewer: zoom into any Timeline, hover over its spans, move a play head. The course's one anywidget.

Python sends the spans as arrays (`timeline_arrays.py`), the palette, the units and the words. All interaction happens
in the browser (`static/timeline_explorer.js`), so that it goes on while the kernel is busy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from helpers.draw import Scene, timeline_scene
from helpers.draw.page import STYLE
from helpers.draw.palette import DARK, GREY, LIGHT, MUTED_OPACITY, PAINTS, PANEL_OPACITY, RULE_OPACITY, kind_word, words
from helpers.draw.picture import Bundle
from helpers.draw.png import png_language
from helpers.draw.timelines import exposed_sentence, panel_titles, shared_title
from helpers.learner.words import book, reading
from helpers.quantities.units import DECIMAL, SECONDS, format_bytes, format_count, format_seconds
from helpers.records import KINDS, LANES, MEMORY_KINDS, Span, Timeline
from helpers.widgets.bundle import bundle, png_of
from helpers.widgets.explorer import with_sentence
from helpers.widgets.timeline_arrays import encode

STATIC = Path(__file__).parent / "static"
say = book("timelines").section("viewer")


class TimelineExplorer(anywidget.AnyWidget):
    """Any Timelines, predicted, emulated or recorded, one above the other on one axis that starts at 0.

    A timeline may also be the text that `Timeline.to_json` wrote. Bad input shows a sentence in the picture's place.
    Without a front end: `.playhead` (seconds), `.selected_rank`, `.zoom` (start and end, seconds) can be set and read;
    `.reading` says what the selected rank does and holds at the play head, `.text` all that in words.
    """

    TEXT = "[widget] TimelineExplorer: zoom, hover over spans, move the play head and see what each rank does and holds"
    _esm = "\n".join((STATIC / f"timeline_{name}.js").read_text(encoding="utf-8") for name in ("picture", "explorer"))
    _css = STYLE + (STATIC / "timeline_explorer.css").read_text(encoding="utf-8")

    data = traitlets.Dict().tag(sync=True)
    error = traitlets.Unicode().tag(sync=True)
    playhead = traitlets.Float(0.0).tag(sync=True)
    selected_rank = traitlets.Int(0).tag(sync=True)
    zoom = traitlets.Tuple(traitlets.Float(), traitlets.Float(), default_value=(0.0, 0.0)).tag(sync=True)

    def __init__(self, *timelines: Timeline | str | dict, title: str = "") -> None:
        self.timelines: tuple[Timeline, ...] = ()
        self._title = title
        try:
            self.timelines = _checked(timelines)
        except ValueError as error:
            super().__init__(error=str(error))
            return
        longest = max(timeline.duration for timeline in self.timelines) or 1e-9
        self.title = title or shared_title(list(self.timelines))
        super().__init__(
            data=self._data(longest), zoom=(0.0, longest), selected_rank=min(r for t in self.timelines for r in t.ranks)
        )

    def _data(self, longest: float) -> dict[str, Any]:
        """All that the front end needs, once. `paints`, `theme`, `units`: so that no colour or unit is typed twice."""
        names: dict[str, int] = {}
        panels = [
            encode(timeline, names) | {"title": title, "source": timeline.source, "exposed": exposed_sentence(timeline)}
            for timeline, title in zip(self.timelines, self._panel_titles, strict=True)
        ]
        paints = {
            kind: {"fill": paint.fill, "text": paint.text, "texture": paint.texture, "overlay": paint.overlay}
            | {"edge": paint.edge, "word": kind_word(kind)}
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
            "lanes": [words(f"lane.{lane}") for lane in LANES],
            "memory_kinds": list(MEMORY_KINDS),
            "paints": paints,
            "theme": theme,
            "units": {"seconds": SECONDS, "bytes": DECIMAL},
            "words": {name: str(words) for name, words in say.items()} | {"table": words("table")},
            "rows": self.rows,
        }

    @property
    def _panel_titles(self) -> list[str]:
        return panel_titles(list(self.timelines))

    @property
    def scene(self) -> Scene:
        """The whole picture, not zoomed. ValueError, with the sentence that is shown, where there is none."""
        if self.error:
            raise ValueError(self.error)
        return timeline_scene(*self.timelines, title=self._title)

    @property
    def sentence(self) -> str:
        """What is exposed in each timeline, or what is wrong with the input."""
        pairs = zip(self.timelines, self._panel_titles, strict=True)
        said = (words("panel_of", title=title, says=exposed_sentence(timeline)) for timeline, title in pairs)
        return self.error or " ".join(said)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The table below the picture: one row a timeline and rank."""
        pairs = zip(self.timelines, self._panel_titles, strict=True)
        return [_row(timeline, title, rank) for timeline, title in pairs for rank in timeline.ranks]

    @property
    def reading(self) -> str:
        """What the selected rank does and holds at the play head, in each timeline that has this rank."""
        pairs = zip(self.timelines, self._panel_titles, strict=True)
        rank = self.selected_rank
        said = [_said(timeline, title, rank, self.playhead) for timeline, title in pairs if rank in timeline.ranks]
        return say("reading", time=format_seconds(self.playhead), rank=rank, said=said)

    @property
    def text(self) -> str:
        """The sentence, the reading and the table as plain text; of bad input the sentence alone."""
        if self.error:
            return self.error
        lines = [", ".join(f"{name} {value}" for name, value in row.items()) for row in self.rows]
        return "\n".join([self.title, self.sentence, self.reading, *lines])

    def __repr__(self) -> str:
        return self.TEXT

    def _repr_mimebundle_(self, **kwargs: Any) -> Bundle:
        with reading(png_language()):
            scene = with_sentence(None, self.error) if self.error else self.scene
        return bundle(super()._repr_mimebundle_(**kwargs), self.TEXT, png_of(scene))


def _checked(given: Sequence[object]) -> tuple[Timeline, ...]:
    """The timelines, those given as JSON text read. ValueError with a sentence for anything that cannot be shown."""
    if not given:
        raise ValueError("TimelineExplorer got no timeline; give one or more, such as TimelineExplorer(predicted)")
    return tuple(_timeline(number, one) for number, one in enumerate(given))


def _timeline(number: int, given: object) -> Timeline:
    timeline = given if isinstance(given, Timeline) else _read(number, given)
    if not timeline.spans:
        raise ValueError(f"timeline {number} has no span, so there is nothing to show; did the recorded block run?")
    if not all(math.isfinite(instant) for span in timeline.spans for instant in (span.start, span.end)):
        raise ValueError(f"timeline {number} has a span that never starts or never ends; give seconds that are finite")
    return timeline


def _read(number: int, given: object) -> Timeline:
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
    messages = [span for span in timeline.for_rank(rank).spans if span.lane == "communication"]
    return {
        say("timeline"): title,
        "rank": str(rank),
        say("computes_for"): format_seconds(timeline.busy(rank)),
        say("exposed"): format_seconds(timeline.exposed_communication(rank)),
        say("nothing"): format_seconds(timeline.idle(rank)),
        say("messages"): format_count(len(messages)),
        say("payload"): format_bytes(sum(span.num_bytes for span in messages)),
    }


def _said(timeline: Timeline, title: str, rank: int, playhead: float) -> str:
    """One sentence: computes, communicates, holds."""
    if playhead > timeline.duration:
        return words("panel_of", title=title, says=say("over"))
    instant = min(timeline.start + playhead, timeline.end)
    spans = timeline.at(rank, instant)
    lanes = ([span for span in spans if span.lane == lane] for lane in ("compute", "communication"))
    computes, sends = ([_named(span) for span in lane] for lane in lanes)
    holds = timeline.holds(rank, instant)
    kinds = [f"{kind_word(kind)} {format_bytes(size)}" for kind in PAINTS if (size := getattr(holds, kind, 0))]
    total = f"{format_bytes(holds.total)} = " if len(kinds) > 1 else ""
    memory = say("holds", total=total, kinds=kinds or ["0 B"]) if timeline.held else ""
    lanes = {"computes": computes or [say("idle")], "sends": sends or [say("silent")]}
    return say("computes", title=title, **lanes, holds=memory)


def _named(span: Span) -> str:
    return say("span", name=span.name, size=format_bytes(span.num_bytes)) if span.num_bytes else span.name
