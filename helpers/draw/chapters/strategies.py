"""Draws the memory of every strategy's fullest rank against a GPU's limit, with its estimated step beside the bar.

A strategy is a way to train a model on many GPUs, such as ZeRO-3. A candidate (PlanEstimate) is the best plan of one
strategy: its title, the memory of its fullest rank, its estimated seconds, and whether it fits; memory is None where
the strategy cannot train this model. The strategy explorer shows what `predict.advice.advise` recommends: the chosen
plan is framed. A bar far beyond the limit is broken, because drawn to scale it would leave no room for the others;
behind the break stands how many times the limit it is, so that broken bars of one length are not taken for equal.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from helpers.draw.axis import bytes_axis, limit_line
from helpers.draw.palette import kind_word
from helpers.draw.rows import BarStyle, memory_parts
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.learner.words import book
from helpers.predict.advice.plans import PlanEstimate
from helpers.quantities.units import format_bytes, format_seconds
from helpers.records import MEMORY_KINDS

words = book("advice").section("picture")  # the texts that are shown, by name: learner/words/advice.yaml
_BARS = BarStyle(height=20, pitch=30)
_MOST_LIMITS = 2.0  # bars are broken at this many times the limit
_STEP_WIDTH = 178.0  # pixels right of the longest bar, for memory and step as text
_BREAK, _TIMES_WIDTH = 12.0, 78.0  # pixels: of a break, and of the text behind it


def strategies_scene(candidates: Sequence[PlanEstimate], *, limit: float, limit_name: str, title: str) -> Scene:
    """A row for each candidate; `limit` is the usable bytes of a GPU. Raises ValueError if there is nothing to draw."""
    memories = [candidate.memory for candidate in candidates if candidate.memory]
    if not any(memory.total for memory in memories) or not limit > 0:
        raise ValueError(
            f"strategies_scene got no bytes to draw, or a limit of {limit!r} bytes; give advise's candidates"
        )
    kinds = [kind for kind in MEMORY_KINDS if any(getattr(memory, kind) for memory in memories)]
    items, top = heading(title, kinds_legend(kinds))  # title and legend, and the y where they end
    rows = _Rows(candidates, kinds, limit)
    top += 26
    bottom = top + len(candidates) * _BARS.pitch
    items += bytes_axis(rows.shown, rows.left, rows.scale, top - 6, bottom)
    for number, candidate in enumerate(candidates):
        items += rows.row(candidate, top + number * _BARS.pitch)
    text = words("limit", name=limit_name, size=format_bytes(limit))
    items += limit_line(text, rows.left + limit * rows.scale, top - 6, bottom)
    # "beside" is the heading of the texts on the right: memory per rank, and step.
    items.append(Label(x=WIDTH - 14, y=top - 14, text=words("beside"), size=11, anchor="end", colour="muted"))
    # "between" is what separates two sentences in the learner's language.
    summary = book("advice")("between").join(_sentence(candidate) for candidate in candidates)
    return Scene(height=bottom + 24, title=title, summary=summary, items=items)


class _Rows:
    """The rows, and where things lie in them.

    `shown` is the number of bytes at which bars are broken, `left` the left edge of the bars, and `scale` is in pixels
    per byte.
    """

    def __init__(self, candidates: Sequence[PlanEstimate], kinds: list[str], limit: float) -> None:
        self.kinds, self.limit = kinds, limit
        largest = max(candidate.memory.total for candidate in candidates if candidate.memory)
        self.shown = min(max(1.1 * limit, largest), _MOST_LIMITS * limit)  # at least 10 % more than the limit
        self.left = 34 + max(text_width(_name(candidate), 12, bold=candidate.is_chosen) for candidate in candidates)
        behind = _BREAK + _TIMES_WIDTH if largest > self.shown else 0.0
        self.scale = (WIDTH - self.left - _STEP_WIDTH - behind) / self.shown

    def row(self, candidate: PlanEstimate, y: float) -> Iterator[Rect | Label | Line]:
        """A candidate: its name, the bar of its memory, and memory and step as text; the chosen one is framed."""
        middle, is_chosen = y + _BARS.height / 2, candidate.is_chosen
        if is_chosen:
            box = {"x": 8, "y": y - 4, "width": WIDTH - 16, "height": _BARS.height + 8, "radius": 4}
            yield Rect(**box, stroke="ink", stroke_width=2, tooltip=words("chosen", plan=candidate.plan_text))
        yield Label(x=self.left - 10, y=middle, text=_name(candidate), anchor="end", bold=is_chosen)
        if candidate.memory is None:
            yield Label(x=self.left + 8, y=middle, text=words("cannot"), colour="muted")
            return
        yield from self._bar(candidate, y)
        text = f"{format_bytes(candidate.memory.total)} · {_step_text(candidate)}"
        yield Label(x=WIDTH - 14, y=middle, text=text, anchor="end", bold=is_chosen)

    def _bar(self, candidate: PlanEstimate, y: float) -> Iterator[Rect | Label | Line]:
        """The bar, whose parts end where a bar that is too long is broken."""
        total, parts = 0.0, []
        for part in memory_parts(candidate.memory, self.kinds, partial(_tooltip, candidate)):
            # As much of the part as lies before the break.
            parts.append(replace(part, size=min(total + part.size, self.shown) - min(total, self.shown)))
            total += part.size
        yield from _BARS.parts(parts, self.left, y, self.scale)
        if total > self.shown:
            yield from self._break(total, y)

    def _break(self, total: float, y: float) -> Iterator[Label | Line]:
        """Two strokes at the end of a broken bar, and how many times the limit the bar is."""
        end = self.left + self.shown * self.scale
        for x in (end + 2, end + 7):  # the tooltip says that the bar goes on, not to scale
            yield Line(x1=x - 2, y1=y + _BARS.height, x2=x + 2, y2=y, colour="ink", width=1.6, tooltip=words("cut"))
        text = words("times", ratio=total / self.limit)
        yield Label(x=end + _BREAK, y=y + _BARS.height / 2, text=text, size=11, bold=True)


def _tooltip(candidate: PlanEstimate, kind: str, num_bytes: int) -> str:
    return words("bytes", name=candidate.title, kind=kind_word(kind), size=num_bytes)


def _name(candidate: PlanEstimate) -> str:
    """The title of a candidate, with a check mark for the chosen one."""
    return f"✓ {candidate.title}" if candidate.is_chosen else candidate.title


def _step_text(candidate: PlanEstimate) -> str:
    """The estimated seconds of a step, or that the plan needs too much memory."""
    return format_seconds(candidate.seconds) if candidate.fits else words("too_much")


def _sentence(candidate: PlanEstimate) -> str:
    """A row for readers who cannot see the picture."""
    if candidate.memory is None:
        return words("refused", name=candidate.title, why=candidate.why)
    texts = {"held": format_bytes(candidate.memory.total), "step": _step_text(candidate)}
    return words("said", name=candidate.title, chosen=candidate.is_chosen, **texts)
