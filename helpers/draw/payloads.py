"""Messages of several ways, a row each, and what a token weighs: the bars of chapter 03."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from helpers.draw.palette import PAINTS, rank_paint
from helpers.draw.scene import WIDTH, Label, Rect, Scene, heading, kinds_legend, text_width
from helpers.learner.words import book
from helpers.quantities.units import format_bytes

say = book("pictures")
_BAR, _PITCH, _RIGHT = 28.0, 38.0, 84.0
_SIDE, _TALL, _APART = 14.0, 96.0, 22.0  # pixels: margin, the heaviest token, between two ranks


def payloads_scene(rows: Mapping[str, Sequence[int]], *, title: str, width: float = WIDTH) -> Scene:
    """rows: a name to the bytes of its messages, in order; none at all is drawn as 0 B. ValueError if all have none."""
    totals = {name: sum(sizes) for name, sizes in rows.items()}
    if not any(totals.values()):
        raise ValueError("payloads_scene found no message; give a name to the bytes of its messages, above 0")
    head, top = heading(title, kinds_legend(["communication"]), width)
    left = 28 + max(text_width(name, 13) for name in rows)
    scale = (width - left - _RIGHT) / max(totals.values())
    items: list[Rect | Label] = [*head]
    for number, (name, sizes) in enumerate(rows.items()):
        y = top + 8 + number * _PITCH
        items.append(Label(x=left - 12, y=y + _BAR / 2, text=name, size=13, anchor="end"))
        items += _messages(sizes, left, y, scale)
        end = left + totals[name] * scale
        items.append(Label(x=end + 8, y=y + _BAR / 2, text=format_bytes(totals[name]), size=13, bold=True))
    said = [say("payloads.row", name=name, sizes=[*map(format_bytes, rows[name])] or ["0 B"]) for name in rows]
    height = top + 8 + len(rows) * _PITCH
    return Scene(width=width, height=height, title=title, summary=" ".join(said), items=tuple(items))


def _messages(sizes: Sequence[int], x: float, y: float, scale: float) -> Iterator[Rect | Label]:
    look = {"fill": "communication", "texture": PAINTS["communication"].texture}
    for size in sizes:
        text, long = format_bytes(size), size * scale
        yield Rect(x=x, y=y, width=max(1.0, long - 3), height=_BAR, radius=3, tooltip=text, **look)
        if len(sizes) > 1 and text_width(text, 12) < long - 8:
            yield Label(x=x + long / 2, y=y + _BAR / 2, text=text, size=12, anchor="middle", on="communication")
        x += long


def token_weights_scene(lengths: Sequence[int], *, title: str, width: float = WIDTH) -> Scene:
    """What each token weighs in the mean of the ranks' means, and below it in the mean of all: as tall as its weight.

    lengths: tokens of each rank. ValueError where a rank has none, since it has no mean.
    """
    if not lengths or min(lengths) < 1:
        raise ValueError(f"the ranks have {list(lengths)} tokens; give each of them one or more")
    ways = {"own": [Fraction(1, len(lengths) * one) for one in lengths]}
    ways["all"] = [Fraction(1, sum(lengths))] * len(lengths)
    across = (width - 2 * _SIDE - _APART * (len(lengths) - 1)) / sum(lengths)
    items: list[Rect | Label] = [Label(x=_SIDE, y=20, text=title, size=14, bold=True)]
    bottom, said = 30.0, []
    for way, weights in ways.items():
        tall = [float(weight / max(ways["own"])) * _TALL for weight in weights]
        items.append(Label(x=width - _SIDE, y=bottom + 20, text=say(f"tokens.{way}"), size=13, anchor="end", bold=True))
        bottom += max(tall) + (14 if way == "own" else 40)
        items += _ranks(lengths, weights, tall, across, bottom)
        said.append(say("tokens.row", way=say(f"tokens.{way}"), weights=[*map(str, weights)]))
        bottom += 38
    return Scene(width=width, height=bottom + 4, title=title, summary=" ".join(said), items=tuple(items))


def _ranks(
    lengths: Sequence[int], weights: Sequence[Fraction], tall: Sequence[float], across: float, bottom: float
) -> Iterator[Rect | Label]:
    x = _SIDE
    for rank, length in enumerate(lengths):
        look = {"fill": rank_paint(rank), "tooltip": str(weights[rank]), "height": tall[rank], "y": bottom - tall[rank]}
        yield from (Rect(x=x + token * across, width=across - 2, **look) for token in range(length))
        middle = x + length * across / 2
        yield Label(x=middle, y=bottom + 12, text=f"rank {rank}", size=12, anchor="middle", colour="muted")
        yield Label(x=middle, y=bottom + 28, text=str(weights[rank]), size=13, anchor="middle", bold=True)
        x += length * across + _APART
