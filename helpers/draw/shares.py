"""What a rank sends in a step, in parts of P, the bytes of all parameters: a bar of messages for each way to train.

Predicted is the bar, counted is a dot at its end, so that one sees at a glance whether they agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from helpers.draw.palette import PAINTS
from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene, heading, kinds_legend, text_width
from helpers.learner.words import book

say = book("pictures")
_BAR, _PITCH, _RIGHT, _DOT = 30.0, 42.0, 96.0, 12.0


@dataclass(frozen=True, kw_only=True)
class Share:
    """One message, or several of a kind. share: of P. kind: of the palette, what is carried."""

    text: str
    kind: str
    share: float


def zero_shares(num_ranks: int) -> dict[str, list[Share]]:
    """What each stage of ZeRO sends in a step of one micro-batch, beside plain data parallelism, by a ring."""
    half = (num_ranks - 1) / num_ranks
    reduce = Share(text="reduce-scatter", kind="gradients", share=half)
    update = Share(text="all-gather", kind="parameters", share=half)
    gathers = [Share(text=f"gather, {when}", kind="parameters", share=half) for when in ("forward", "backward")]
    plain = Share(text="all-reduce", kind="gradients", share=2 * half)
    return {"data parallel": [plain], "stage 1": [reduce, update], "stage 2": [reduce, update]} | {
        "stage 3": [*gathers, reduce]
    }


def shares_scene(
    rows: Mapping[str, Sequence[Share]],
    *,
    counted: Mapping[str, float],
    title: str,
    width: float = WIDTH,
) -> Scene:
    """rows: a name ("stage 1") to its messages. counted: a name to the parts of P that the wire's log holds."""
    if not rows or not all(rows.values()):
        raise ValueError("shares_scene found a row without messages; give each name at least one Share")
    totals = {name: sum(one.share for one in shares) for name, shares in rows.items()}
    kinds = list(dict.fromkeys(one.kind for shares in rows.values() for one in shares))
    dot = (say("shares.counted"), {"fill": "ink"})
    head, top = heading(title, [*kinds_legend(kinds), dot], width)
    left = 28 + max(text_width(name, 13) for name in rows)
    scale = (width - left - _RIGHT) / max(totals.values())
    items: list[Rect | Label | Line] = [*head]
    for number, (name, shares) in enumerate(rows.items()):
        y = top + 10 + number * _PITCH
        items.append(Label(x=left - 12, y=y + _BAR / 2, text=name, size=13, anchor="end"))
        items += _bar(shares, left, y, scale)
        items += _end(totals[name], counted[name], left, y, scale)
    height = top + 10 + len(rows) * _PITCH
    summary = " ".join(_said(name, shares, totals[name]) for name, shares in rows.items())
    return Scene(width=width, height=height, title=title, summary=summary, items=tuple(items))


def _bar(shares: Sequence[Share], left: float, y: float, scale: float) -> Iterator[Rect | Label]:
    x = left
    for one in shares:
        long = one.share * scale
        look = {"fill": one.kind, "texture": PAINTS[one.kind].texture, "tooltip": _part(one)}
        yield Rect(x=x, y=y, width=max(1.0, long - 2), height=_BAR, radius=2, **look)
        if text_width(one.text, 12) < long - 8:
            yield Label(x=x + long / 2, y=y + _BAR / 2, text=one.text, size=12, anchor="middle", on=one.kind)
        x += long


def _end(total: float, counted: float, left: float, y: float, scale: float) -> Iterator[Rect | Label]:
    x = left + counted * scale
    yield Rect(x=x - _DOT / 2, y=y + (_BAR - _DOT) / 2, width=_DOT, height=_DOT, radius=5.9, fill="ink")
    at = max(x, left + total * scale) + 14
    yield Label(x=at, y=y + _BAR / 2, text=f"{total:.2f} P", size=13, bold=True)


def _part(one: Share) -> str:
    return say("shares.part", text=one.text, share=f"{one.share:.2f}")


def _said(name: str, shares: Sequence[Share], total: float) -> str:
    return say("shares.row", name=name, parts=[_part(one) for one in shares], total=f"{total:.2f}")
