"""Every strategy's fullest rank as a bar against a GPU's limit, the chosen one framed, its estimated step beside it.

A bar far beyond the limit is broken, for to scale it would leave the others no room: behind the break stands how many
times the limit it is, and no bar has the length of another that it does not equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from helpers.draw.axis import bytes_axis
from helpers.draw.palette import PAINTS, kind_word
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.learner.words import book
from helpers.predict.advice.plans import PlanEstimate
from helpers.quantities.units import format_bytes, format_seconds
from helpers.records import MEMORY_KINDS

say = book("advice").section("picture")
_PITCH, _BAR, _FAR = 30.0, 20.0, 2.0  # pixels from bar to bar, of a bar; bars are cut at so many limits
_WORDS, _BREAK, _TIMES = 178.0, 12.0, 78.0  # pixels right of the longest bar; of a break; of what stands behind it


def strategies_scene(
    candidates: Sequence[PlanEstimate], *, limit: float, limit_name: str, title: str, width: float = WIDTH
) -> Scene:
    """A row for each candidate. limit: usable bytes of a GPU, with its name. ValueError for nothing to draw."""
    largest = max((one.held.total for one in candidates if one.held), default=0)
    if not largest or not limit > 0:
        raise ValueError(
            f"strategies_scene got no bytes to draw, or a limit of {limit!r} bytes; give advise's candidates"
        )
    kinds = [kind for kind in MEMORY_KINDS if any(one.held and getattr(one.held, kind) for one in candidates)]
    head, top = heading(title, kinds_legend(kinds), width)
    row = _Row(candidates, kinds, limit, min(max(1.1 * limit, largest), _FAR * limit), width)
    top += 26
    bottom = top + len(candidates) * _PITCH
    items: list[Rect | Label | Line] = [*head, *bytes_axis(row.shown, row.left, row.scale, top - 6, bottom)]
    for number, one in enumerate(candidates):
        items += row.draw(one, top + number * _PITCH)
    items += row.line(say("limit", name=limit_name, size=format_bytes(limit)), top - 6, bottom)
    items.append(Label(x=width - 14, y=top - 14, text=say("beside"), size=11, anchor="end", colour="muted"))
    summary = book("advice")("between").join(_said(one) for one in candidates)
    return Scene(width=width, height=bottom + 24, title=title, summary=summary, items=tuple(items))


class _Row:
    """Where things stand. scale: pixels a byte. shown: bytes at which bars are cut."""

    def __init__(
        self, candidates: Sequence[PlanEstimate], kinds: list[str], limit: float, shown: float, width: float
    ) -> None:
        self.kinds, self.limit, self.shown, self.width = kinds, limit, shown, width
        self.left = 34 + max(text_width(_name(one), 12, bold=one.is_chosen) for one in candidates)
        behind = _BREAK + _TIMES if any(one.held and one.held.total > shown for one in candidates) else 0.0
        self.scale = (width - self.left - _WORDS - behind) / shown

    def draw(self, one: PlanEstimate, y: float) -> Iterator[Rect | Label]:
        middle = y + _BAR / 2
        if one.is_chosen:
            box = {"x": 8, "y": y - 4, "width": self.width - 16, "height": _BAR + 8}
            yield Rect(**box, radius=4, stroke="ink", stroke_width=2, tooltip=say("chosen", plan=one.plan_words))
        yield Label(x=self.left - 10, y=middle, text=_name(one), anchor="end", bold=one.is_chosen)
        if one.held is None:
            yield Label(x=self.left + 8, y=middle, text=say("cannot"), colour="muted")
            return
        yield from self._bar(one, y)
        yield Label(x=self.width - 14, y=middle, text=_words(one), anchor="end", bold=one.is_chosen)

    def _bar(self, one: PlanEstimate, y: float) -> Iterator[Rect | Label | Line]:
        held = 0.0
        for kind in self.kinds:
            num_bytes = getattr(one.held, kind)
            long = (min(held + num_bytes, self.shown) - min(held, self.shown)) * self.scale
            if long >= 0.5:
                look = {"fill": kind, "texture": PAINTS[kind].texture if long > 4 else ""}
                tooltip = say("bytes", name=one.title, kind=kind_word(kind), size=num_bytes)
                x = self.left + held * self.scale
                yield Rect(x=x, y=y, width=max(long - 1, 0.5), height=_BAR, tooltip=tooltip, **look)
            held += num_bytes
        if held > self.shown:
            yield from self._beyond(held, y)

    def _beyond(self, held: float, y: float) -> Iterator[Label | Line]:
        """The break, and how many times the limit the bar is."""
        end = self.left + self.shown * self.scale
        for x in (end + 2, end + 7):
            yield Line(x1=x - 2, y1=y + _BAR, x2=x + 2, y2=y, colour="ink", width=1.6, tooltip=say("cut"))
        text = say("times", ratio=held / self.limit)
        yield Label(x=end + _BREAK, y=y + _BAR / 2, text=text, size=11, bold=True)

    def line(self, text: str, top: float, bottom: float) -> Iterator[Label | Line]:
        x = self.left + self.limit * self.scale
        yield Line(x1=x, y1=top - 2, x2=x, y2=bottom, colour="ink", width=2, dashed=True, tooltip=text)
        yield Label(x=x, y=top - 10, text=text, anchor="middle", bold=True)


def _name(one: PlanEstimate) -> str:
    return f"✓ {one.title}" if one.is_chosen else one.title


def _words(one: PlanEstimate) -> str:
    return f"{format_bytes(one.held.total)} · {_step(one)}"


def _step(one: PlanEstimate) -> str:
    return format_seconds(one.seconds) if one.fits else say("too_much")


def _said(one: PlanEstimate) -> str:
    if one.held is None:
        return say("refused", name=one.title, why=one.why)
    held = format_bytes(one.held.total)
    return say("said", name=one.title, chosen=one.is_chosen, held=held, step=_step(one))
