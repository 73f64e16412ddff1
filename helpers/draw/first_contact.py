"""The pictures of chapter 00: GPUs that stand still, a notebook's ranks, an all-reduce, who stands where, two means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from helpers.draw.palette import rank_paint
from helpers.draw.scene import Label, Line, Rect, Scene
from helpers.learner.words import book

SAYS = book("first_contact")
_WIDTH, _SIDE, _ROW = 720.0, 14.0, 40.0
_WAITS = {"fill": "panel", "texture": "hatch"}
_LAYERS = ("buffers", "rank6", "other")  # none of them is the paint of one of four ranks
Item = Rect | Label | Line


def _title(text: str) -> Label:
    return Label(x=_SIDE, y=20, text=text, size=14, bold=True)


def _box(x: float, y: float, width: float, text: str, *, fill: str = "panel", height: float = 28) -> Iterator[Item]:
    """A box with a text, which stands in the middle; y is the box's middle, too."""
    on = "" if fill == "panel" else fill
    yield Rect(x=x, y=y - height / 2, width=width, height=height, radius=5, fill=fill, stroke="" if on else "rule")
    yield Label(x=x + width / 2, y=y, text=text, size=13, anchor="middle", on=on)


# -- the question ----------------------------------------------------------------------------------------------------
def hanging_job_scene(num_gpus: int = 64) -> Scene:
    """A job seen from outside: equal GPUs, and nothing says which of them has the odd process."""
    columns, cell = 16, 44.0
    items: list[Item] = [_title(SAYS("standstill.title", n=num_gpus))]
    for gpu in range(num_gpus):
        row, column = divmod(gpu, columns)
        x, y = 10 + column * cell, 44 + row * cell
        items.append(Rect(x=x, y=y, width=38, height=38, radius=4, fill="panel", stroke="rule"))
        items.append(Rect(x=x + 7, y=y + 7, width=24, height=24, radius=2, fill="buffers", texture="hatch"))
    bottom = 44 + -(-num_gpus // columns) * cell
    below = SAYS("standstill.below", n=num_gpus)
    items.append(Label(x=_SIDE, y=bottom + 14, text=below, size=12, colour="muted"))
    return Scene(width=_WIDTH, height=bottom + 32, title=items[0].text, summary=below, items=items)


# -- what a rank is --------------------------------------------------------------------------------------------------
def processes_scene(num_ranks: int = 4) -> Scene:
    """The notebook, its ranks, and what goes to and fro."""
    title, summary = (SAYS(f"processes.{name}", n=num_ranks) for name in ("title", "summary"))
    items: list[Item] = [_title(title)]
    items += _box(_SIDE, 84, 130, SAYS("processes.notebook"), height=76)
    items.append(Line(x1=150, y1=84, x2=236, y2=84, colour="ink", width=1.6, arrow=True))
    items.append(Label(x=190, y=70, text=SAYS("processes.cell"), size=12, anchor="middle", colour="muted"))
    width = (_WIDTH - 246 - _SIDE) / num_ranks
    for rank in range(num_ranks):
        x = 246 + rank * width
        items.append(Rect(x=x, y=46, width=width - 10, height=76, radius=5, fill="panel", stroke="rule"))
        items += _box(x, 60, width - 10, f"rank {rank}", fill=rank_paint(rank))
        items.append(
            Label(x=x + (width - 10) / 2, y=98, text=SAYS("processes.memory"), size=12, anchor="middle", colour="muted")
        )
        middle = x + (width - 10) / 2
        items.append(Line(x1=middle, y1=150, x2=middle, y2=126, colour="communication", width=1.6, arrow=True))
    items.append(Line(x1=246, y1=150, x2=_WIDTH - _SIDE - 10, y2=150, colour="communication", width=2.5))
    items.append(Label(x=246, y=166, text=SAYS("processes.messages"), size=12))
    return Scene(width=_WIDTH, height=182, title=title, summary=summary, items=items)


# -- the first collective --------------------------------------------------------------------------------------------
def all_reduce_scene(before: Sequence[float], after: Sequence[float]) -> Scene:
    """The number that each rank holds before and after, in rank order."""
    if len(before) != len(after):
        raise ValueError(f"{len(before)} ranks before and {len(after)} after; give a number for each rank in both")
    title, num_ranks = SAYS("values.title"), len(before)
    middle = 64 + (num_ranks - 1) * _ROW / 2
    items: list[Item] = [_title(title)]
    for x, name in ((150, "before"), (570, "after")):
        items.append(Label(x=x, y=40, text=SAYS(f"values.{name}"), size=12, anchor="middle", colour="muted"))
    for rank, (old, new) in enumerate(zip(before, after, strict=True)):
        y = 68 + rank * _ROW
        items.append(Label(x=_SIDE, y=y, text=f"rank {rank}", size=13))
        items += [*_box(90, y, 120, f"{old:g}", fill=rank_paint(rank)), *_box(510, y, 120, f"{new:g}", fill="buffers")]
        items.append(Line(x1=214, y1=y, x2=274, y2=middle + 4, colour="communication", width=1.6, arrow=True))
        items.append(Line(x1=446, y1=middle + 4, x2=506, y2=y, colour="communication", width=1.6, arrow=True))
    items += _box(280, middle + 4, 160, SAYS("values.sum"), height=44)
    summary = SAYS("values.summary", before=[f"{one:g}" for one in before], after=[f"{one:g}" for one in after])
    return Scene(width=_WIDTH, height=68 + num_ranks * _ROW, title=title, summary=summary, items=items)


# -- a hang ----------------------------------------------------------------------------------------------------------
def hang_scene(steps: Sequence[str], places: Sequence[int], skips: Sequence[tuple[int, int]] = ()) -> Scene:
    """Where each rank of a hanging job stands. steps: lines of the program. places: of each rank, its step.

    skips: (rank, step) that a rank went past. A rank at the last step goes on; every other one waits.
    """
    if not all(0 <= place < len(steps) for place in places):
        raise ValueError(f"the places are {list(places)}, but the steps are numbered 0 to {len(steps) - 1}")
    title, across = SAYS("standing.title"), (_WIDTH - 230) / max(1, len(steps) - 1)
    items: list[Item] = [_title(title)]
    for number, step in enumerate(steps):
        x = 110 + number * across
        items.append(Label(x=x, y=46, text=step, size=12, anchor="middle", colour="muted"))
        items.append(Line(x1=x, y1=58, x2=x, y2=64 + len(places) * _ROW, dashed=True))
    for rank, place in enumerate(places):
        items += _lane(rank, 84 + rank * _ROW, place, across, len(steps), dict.fromkeys(skips))
    summary = "; ".join(SAYS("standing.here", rank=rank, step=steps[place]) for rank, place in enumerate(places))
    return Scene(width=_WIDTH, height=76 + len(places) * _ROW, title=title, summary=f"{summary}.", items=items)


def _lane(rank: int, y: float, place: int, across: float, num_steps: int, skips: dict) -> Iterator[Item]:
    """How far a rank came, and what it does there."""
    kind, x, done = rank_paint(rank), 110 + place * across, place == num_steps - 1
    yield Label(x=_SIDE, y=y, text=f"rank {rank}", size=13, bold=done)
    yield Line(x1=80, y1=y, x2=x - 9, y2=y, colour=kind, width=3, dashed=any((rank, s) in skips for s in range(place)))
    for step in range(place + 1):
        empty = (rank, step) in skips
        look = {"fill": "surface", "stroke": kind, "stroke_width": 2.0} if empty else {"fill": kind}
        yield Rect(x=110 + step * across - 7, y=y - 7, width=14, height=14, radius=6.0, **look)
    if done:
        yield Label(x=x + 14, y=y, text=SAYS("standing.goes_on"), size=13, bold=True)
        return
    yield Rect(x=x + 14, y=y - 9, width=across - 40, height=18, radius=3, **_WAITS)
    yield Rect(x=x + 14 + (across - 40) / 2 - 28, y=y - 9, width=56, height=18, radius=3, fill="surface")
    yield Label(x=x + 14 + (across - 40) / 2, y=y, text=SAYS("standing.waits"), size=12, anchor="middle")


# -- a ring --------------------------------------------------------------------------------------------------------
def ring_scene(num_ranks: int = 4) -> Scene:
    """The first step of a ring: each rank's own copy of all chunks, and the chunk that goes to the right neighbour."""
    title, summary = (SAYS(f"ring.{name}", n=num_ranks) for name in ("title", "summary"))
    across = (_WIDTH - 2 * _SIDE + 70) / num_ranks
    wide, size = across - 70, (across - 82) / num_ranks
    items: list[Item] = [_title(title)]
    for rank in range(num_ranks):
        x = _SIDE + rank * across
        items.append(Rect(x=x, y=44, width=wide, height=82, radius=5, fill="panel", stroke="rule"))
        items += _box(x, 58, wide, f"rank {rank}", fill=rank_paint(rank))
        for chunk in range(num_ranks):
            look = (
                {"stroke": "communication", "stroke_width": 3.0}
                if chunk == (rank - 1) % num_ranks
                else {"stroke": "rule"}
            )
            left = x + 6 + chunk * size
            items.append(Rect(x=left + 2, y=82, width=size - 4, height=34, radius=3, fill="surface", **look))
            items.append(Label(x=left + size / 2, y=99, text=str(chunk), size=13, anchor="middle"))
        if rank < num_ranks - 1:
            items += _hop(x + wide + 4, x + across - 4, 99, (rank - 1) % num_ranks)
    first, last = _SIDE + wide / 2, _SIDE + (num_ranks - 1) * across + wide / 2
    items.append(Line(x1=last, y1=126, x2=last, y2=152, colour="communication", width=1.6))
    items.append(Line(x1=last, y1=152, x2=first, y2=152, colour="communication", width=1.6))
    items.append(Line(x1=first, y1=152, x2=first, y2=130, colour="communication", width=1.6, arrow=True))
    text = SAYS("ring.chunk", n=max(0, num_ranks - 2))
    items.append(Label(x=(first + last) / 2, y=166, text=text, size=12, anchor="middle"))
    return Scene(width=_WIDTH, height=182, title=title, summary=summary, items=items)


def _hop(x1: float, x2: float, y: float, chunk: int) -> Iterator[Item]:
    yield Line(x1=x1, y1=y, x2=x2, y2=y, colour="communication", width=1.6, arrow=True)
    yield Label(x=(x1 + x2) / 2, y=y - 12, text=SAYS("ring.chunk", n=chunk), size=12, anchor="middle")


# -- two means -------------------------------------------------------------------------------------------------------
def means_scene(held: Sequence[Sequence[float]]) -> Scene:
    """The numbers of each rank as dots, their mean beside them, the mean of all and the mean of the means."""
    every = [one for of_rank in held for one in of_rank]
    if not all(held):
        raise ValueError(f"the ranks hold {[len(one) for one in held]} numbers; give each at least one")
    means = [sum(one) / len(one) for one in held]
    true, wrong = sum(every) / len(every), sum(means) / len(means)
    scale, bottom = (_WIDTH - 250) / max(every), 72 + len(held) * _ROW
    title = SAYS("means.title", n=len(every), ranks=len(held))
    items: list[Item] = [_title(title)]
    for name, value, anchor in (("true", true, "end"), ("wrong", wrong, "start")):
        x = 90 + value * scale
        items.append(Line(x1=x, y1=54, x2=x, y2=bottom - 12, colour="ink", width=2, dashed=name == "wrong"))
        text = SAYS(f"means.{name}", n=_short(value))
        items.append(Label(x=x, y=44, text=text, size=13, anchor=anchor, bold=True))
    items += _ticks(max(every), scale, bottom)
    for rank, of_rank in enumerate(held):
        items += _dots(rank, 78 + rank * _ROW, of_rank, scale, means[rank])
    summary = SAYS("means.summary", count=len(every), true=_short(true), wrong=_short(wrong))
    return Scene(width=_WIDTH, height=bottom + 18, title=title, summary=summary, items=items)


def _short(value: float) -> str:
    return f"{value:.3g}"


def _ticks(largest: float, scale: float, y: float) -> Iterator[Item]:
    """An axis of whole numbers below the dots."""
    yield Line(x1=90, y1=y - 12, x2=90 + largest * scale, y2=y - 12)
    for number in range(0, int(largest) + 1, max(1, round(largest / 5))):
        value = float(number)
        text = _short(value) if number else f"{SAYS('means.loss')} 0"
        yield Label(x=90 + value * scale, y=y, text=text, size=12, anchor="middle", colour="muted")


def _dots(rank: int, y: float, of_rank: Sequence[float], scale: float, mean: float) -> Iterator[Item]:
    """One dot per number; equal ones in a cluster of two rows around their place."""
    yield Label(x=_SIDE, y=y, text=f"rank {rank}", size=13)
    for value in dict.fromkeys(of_rank):
        count = of_rank.count(value)
        for number in range(count):
            column, row = divmod(number, 2)
            x = 90 + value * scale + (column - (count - 1) // 2 / 2) * 16 - 7
            top = y - 7 + (row - 0.5) * 16 * (count > 1)
            yield Rect(x=x, y=top, width=14, height=14, radius=6.0, fill=rank_paint(rank), tooltip=_short(value))
    yield Label(x=_WIDTH - 100, y=y, text=SAYS("means.rank_mean", n=_short(mean)), size=12, colour="muted")


# -- a silent mispairing ---------------------------------------------------------------------------------------------
def pairing_scene(calls: Sequence[Sequence[tuple[str, float]]]) -> Scene:
    """What a backend adds up: of each rank its calls in order, (name, value). A column is one operation.

    The names have colours of their own, so that a column of two colours shows what was added up by mistake.
    """
    most = max(map(len, calls))
    names = list(dict.fromkeys(name for of_rank in calls for name, _ in of_rank))
    title, across = SAYS("pairing.title"), (_WIDTH - 110) / most
    items: list[Item] = [_title(title)]
    columns = [[of_rank[number] for of_rank in calls if number < len(of_rank)] for number in range(most)]
    for number, column in enumerate(columns):
        x, bottom = 90 + number * across, 62 + len(calls) * _ROW
        items.append(Label(x=x + 8, y=44, text=SAYS("pairing.call", n=number + 1), size=12, colour="muted"))
        items.append(Rect(x=x, y=56, width=across - 14, height=bottom - 48, radius=6, stroke="communication"))
        absent = [rank for rank, of_rank in enumerate(calls) if number >= len(of_rank)]
        total = SAYS("pairing.sum", n=f"{sum(value for _, value in column):g}")
        end = SAYS("pairing.waits", n=", ".join(map(str, absent))) if absent else total
        items.append(Label(x=x + (across - 14) / 2, y=bottom + 24, text=end, size=13, anchor="middle", bold=True))
    for rank, of_rank in enumerate(calls):
        items += _calls_of(rank, 80 + rank * _ROW, of_rank, names, across, most)
    said = [
        SAYS("pairing.column", number=number + 1, what=[f"{name} {value:g}" for name, value in column])
        for number, column in enumerate(columns)
    ]
    summary = SAYS("pairing.summary", calls=said)
    return Scene(width=_WIDTH, height=104 + len(calls) * _ROW, title=title, summary=summary, items=items)


def _calls_of(
    rank: int, y: float, of_rank: Sequence[tuple[str, float]], names: list[str], across: float, most: int
) -> Iterator[Item]:
    yield Label(x=_SIDE, y=y, text=f"rank {rank}", size=13)
    for number, (name, value) in enumerate(of_rank):
        fill = _LAYERS[names.index(name) % len(_LAYERS)]
        yield from _box(90 + number * across + 12, y, across - 38, f"{name}: {value:g}", fill=fill)
    for number in range(len(of_rank), most):
        text = SAYS("pairing.nothing")
        yield Label(x=90 + (number + 0.5) * across - 7, y=y, text=text, size=12, anchor="middle", colour="muted")
