"""Draws what chapter 00 shows: a killed rank, ranks as processes, first collectives, two means, and kinds of errors.

Most scenes have a row per rank, and the colour of a rank is the same in all of them. A RankError is what the learner
gets when ranks fail; it names the rank to blame.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from helpers.draw.palette import rank_paint
from helpers.draw.scene import (
    MARGIN,
    Label,
    Line,
    Rect,
    Scene,
    SceneItem,
    centred_label,
    labelled_box,
    polyline,
    title_label,
)
from helpers.learner.words import book
from helpers.predict.traffic.algorithms import CollectiveSchedule

words = book("first_contact")  # the texts that are shown, by name: learner/words/first_contact.yaml
BLAMED_RANKS = {"exception": 2, "hang": 1, "mismatch": 3, "died": 1}  # kind of a RankError -> the rank to blame
_WIDTH = 720.0  # pixels
_ROW = 40.0  # pixels from rank to rank
_ROWS_LEFT = 90.0  # pixels: where what belongs to a rank begins, right of its name
_WAITING = {"fill": "panel", "texture": "hatch"}
_NAME_COLOURS = ("buffers", "rank6", "other")  # of names in pairing_scene; none is the colour of one of four ranks
_SQUARE = {"width": 14.0, "height": 14.0, "radius": 6.0}  # a rounded mark, drawn 7 pixels left of and above its middle

# Of error_kinds_scene: a panel per kind, the middle of its call, where a rank's line begins, and from rank to rank.
_PANEL_WIDTH, _PANEL_CALL, _PANEL_LINE, _PANEL_ROW = 167.0, 104.0, 58.0, 34.0


def _mark(x: float, y: float, **style: object) -> Rect:
    """A rounded square around (x, y)."""
    return Rect(x=x - 7, y=y - 7, **_SQUARE, **style)


def _box(
    x: float, y: float, width: float, text: str, *, fill: str = "panel", height: float = 28
) -> Iterator[SceneItem]:
    """A box with a text in its middle; y is the middle of the box."""
    style = {"radius": 5, "fill": fill, "stroke": "rule" if fill == "panel" else ""}
    return labelled_box(x, y - height / 2, width, height, text, size=13, **style)


# -- the question ----------------------------------------------------------------------------------------------------
def killed_rank_scene(killed: int, step: int, message: Sequence[str], num_ranks: int = 4) -> Scene:
    """The steps of ranks that train together until one is killed, and below them the lines that the course reports.

    step: the one in which rank `killed` is killed, counted from 1; the other ranks wait for it there.
    """
    title = words("killed.title", n=num_ranks)
    steps = [words("killed.step", n=number + 1) for number in range(step)]
    columns, pitch = _step_columns(steps, num_ranks, 270)
    items: list[SceneItem] = [title_label(title), *columns]
    for rank in range(num_ranks):
        ending = "killed" if rank == killed else "waits"
        items += _progress(rank, 84 + rank * _ROW, step - 1, pitch, ending, wait_width=110)
    top, height = 84 + num_ranks * _ROW, 20.0 * len(message) + 14
    items.append(Rect(x=MARGIN, y=top - 8, width=_WIDTH - 2 * MARGIN, height=height, radius=5, fill="panel"))
    for number, line in enumerate(message):
        items.append(Label(x=MARGIN + 12, y=top + 9 + 20 * number, text=line.strip(), size=13, bold=number == 0))
    summary = words("killed.summary", n=num_ranks, step=step, rank=killed, message=" ".join(map(str.strip, message)))
    return Scene(width=_WIDTH, height=top + height, title=title, summary=summary, items=items)


def _step_columns(names: Sequence[str], num_ranks: int, right: float) -> tuple[list[SceneItem], float]:
    """A dashed line for each step with its name above, and the pixels from step to step; `right` stay free."""
    pitch = (_WIDTH - right) / max(1, len(names) - 1)
    items: list[SceneItem] = []
    for number, name in enumerate(names):
        x = 110 + number * pitch
        items.append(centred_label(x, 46, name, colour="muted"))
        items.append(Line(x1=x, y1=58, x2=x, y2=64 + num_ranks * _ROW, dashed=True))
    return items, pitch


def _progress(
    rank: int, y: float, reached: int, pitch: float, ending: str, *, wait_width: float, skipped: Collection[int] = ()
) -> Iterator[SceneItem]:
    """The steps that a rank has begun, and what it does at the last of them: `ending` is waits, goes_on or killed.

    `pitch` are the pixels from step to step, and `skipped` the steps that the rank passed without doing them.
    """
    kind, x, is_killed = rank_paint(rank), 110 + reached * pitch, ending == "killed"
    yield Label(x=MARGIN, y=y, text=f"rank {rank}", size=13, bold=ending != "waits")
    has_skipped = any(step in skipped for step in range(reached))
    yield Line(x1=80, y1=y, x2=x - (14 if is_killed else 9), y2=y, colour=kind, width=3, dashed=has_skipped)
    for step in range(reached if is_killed else reached + 1):
        empty = {"fill": "surface", "stroke": kind, "stroke_width": 2.0}
        yield _mark(110 + step * pitch, y, **(empty if step in skipped else {"fill": kind}))
    if is_killed:
        for half in (-7, 7):
            yield Line(x1=x - 7, y1=y - half, x2=x + 7, y2=y + half, colour="ink", width=3)
        yield Label(x=x + 16, y=y, text=words("killed.here"), size=13, bold=True)
    elif ending == "goes_on":
        yield Label(x=x + 14, y=y, text=words("standing.goes_on"), size=13, bold=True)
    else:  # a hatched bar, with "waits" in its middle
        yield Rect(x=x + 14, y=y - 9, width=wait_width, height=18, radius=3, **_WAITING)
        box = {"x": x + 14 + wait_width / 2 - 28, "y": y - 9, "width": 56, "height": 18}
        yield from labelled_box(**box, text=words("standing.waits"), radius=3, fill="surface")


# -- what a rank is --------------------------------------------------------------------------------------------------
def processes_scene(num_ranks: int = 4) -> Scene:
    """The notebook, its ranks, and what they exchange."""
    title, summary = (words(f"processes.{name}", n=num_ranks) for name in ("title", "summary"))
    items: list[SceneItem] = [title_label(title)]
    items += _box(MARGIN, 84, 130, words("processes.notebook"), height=76)
    items.append(Line(x1=150, y1=84, x2=236, y2=84, colour="ink", width=1.6, arrow=True))
    items.append(centred_label(190, 70, words("processes.cell"), colour="muted"))
    left, bus_y = 246, 150  # the ranks begin at `left`; a line at `bus_y` connects them
    pitch = (_WIDTH - left - MARGIN) / num_ranks
    width = pitch - 10
    for rank in range(num_ranks):
        x, middle = left + rank * pitch, left + rank * pitch + width / 2
        items.append(Rect(x=x, y=46, width=width, height=76, radius=5, fill="panel", stroke="rule"))
        items += _box(x, 60, width, f"rank {rank}", fill=rank_paint(rank))
        items.append(centred_label(middle, 98, words("processes.memory"), colour="muted"))
        items.append(Line(x1=middle, y1=bus_y, x2=middle, y2=126, colour="communication", width=1.6, arrow=True))
    items.append(Line(x1=left, y1=bus_y, x2=_WIDTH - MARGIN - 10, y2=bus_y, colour="communication", width=2.5))
    items.append(Label(x=left, y=166, text=words("processes.messages"), size=12))
    return Scene(width=_WIDTH, height=182, title=title, summary=summary, items=items)


# -- the first collective --------------------------------------------------------------------------------------------
def all_reduce_scene(before: Sequence[float], after: Sequence[float]) -> Scene:
    """The number that each rank holds before and after an all-reduce, in rank order.

    Raises ValueError if the two differ in length.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} ranks before and {len(after)} after; give a number for each rank in both")
    title, num_ranks = words("values.title"), len(before)
    sum_y = 68 + (num_ranks - 1) * _ROW / 2  # the middle of all rows
    items: list[SceneItem] = [title_label(title)]
    for x, name in ((150, "before"), (570, "after")):
        items.append(centred_label(x, 40, words(f"values.{name}"), colour="muted"))
    for rank, (old, new) in enumerate(zip(before, after, strict=True)):
        y = 68 + rank * _ROW
        items.append(Label(x=MARGIN, y=y, text=f"rank {rank}", size=13))
        items += _box(_ROWS_LEFT, y, 120, f"{old:g}", fill=rank_paint(rank))
        items += _box(510, y, 120, f"{new:g}", fill="buffers")
        items.append(Line(x1=214, y1=y, x2=274, y2=sum_y, colour="communication", width=1.6, arrow=True))
        items.append(Line(x1=446, y1=sum_y, x2=506, y2=y, colour="communication", width=1.6, arrow=True))
    items += _box(280, sum_y, 160, words("values.sum"), height=44)
    texts = {"before": [f"{number:g}" for number in before], "after": [f"{number:g}" for number in after]}
    summary, height = words("values.summary", **texts), 68 + num_ranks * _ROW
    return Scene(width=_WIDTH, height=height, title=title, summary=summary, items=items)


# -- a hang ----------------------------------------------------------------------------------------------------------
def hang_scene(steps: Sequence[str], reached: Sequence[int], skips: Sequence[tuple[int, int]] = ()) -> Scene:
    """The step at which each rank of a hanging job is.

    `steps` are lines of the program, `reached` is the step of each rank, and `skips` are (rank, step) that a rank
    passed without doing them. A rank at the last step goes on; every other one waits. Raises ValueError for a missing
    step.
    """
    if not all(0 <= step < len(steps) for step in reached):
        raise ValueError(f"the places are {list(reached)}, but the steps are numbered 0 to {len(steps) - 1}")
    title = words("standing.title")
    columns, pitch = _step_columns(steps, len(reached), 230)
    items: list[SceneItem] = [title_label(title), *columns]
    for rank, step in enumerate(reached):
        ending = "goes_on" if step == len(steps) - 1 else "waits"
        skipped = {skipped_step for skipping_rank, skipped_step in skips if skipping_rank == rank}
        # A rank waits up to the next step.
        items += _progress(rank, 84 + rank * _ROW, step, pitch, ending, wait_width=pitch - 40, skipped=skipped)
    summary = "; ".join(words("standing.here", rank=rank, step=steps[step]) for rank, step in enumerate(reached))
    return Scene(width=_WIDTH, height=76 + len(reached) * _ROW, title=title, summary=f"{summary}.", items=items)


def late_stack_scene() -> Scene:
    """One rank with NCCL, drawn from the rules of CUDA streams: where its GPU waits, and which line Python shows."""
    title, left, pitch = words("late.title"), 110.0, 148.0
    items: list[SceneItem] = [title_label(title)]
    calls = ("forward, backward", "all_reduce", "optimizer.step", "loss.item")
    for row, name in enumerate(("python", "gpu")):
        items.append(Label(x=MARGIN, y=72 + row * 72, text=words(f"late.{name}"), size=13, bold=True))
    for number, call in enumerate(calls):
        x, is_last = left + number * pitch, number == len(calls) - 1
        fill = "communication" if call == "all_reduce" else "buffers" if is_last else "panel"
        items += _box(x, 72, pitch - 12, f"{call}()" if number else call, fill=fill)
        if not is_last:
            items.append(Line(x1=x + 68, y1=90, x2=x + 68, y2=126, colour="muted", arrow=True))
    items += _box(left, 144, pitch - 12, calls[0])
    items.append(Rect(x=left + pitch, y=130, width=pitch - 12, height=28, radius=5, **_WAITING))
    items += labelled_box(left + pitch + 40, 135, 56, 18, words("standing.waits"), radius=3, fill="surface")
    items += _box(left + 2 * pitch, 144, pitch - 12, words("late.queued"))
    items.append(centred_label(left + 3 * pitch + 68, 104, words("late.stack"), 12, bold=True))
    items.append(centred_label(left + pitch + 68, 176, words("late.cause"), 12, bold=True))
    return Scene(width=_WIDTH, height=194, title=title, summary=words("late.summary"), items=items)


# -- a ring ----------------------------------------------------------------------------------------------------------
def ring_scene(num_ranks: int = 4) -> Scene:
    """The first step of a ring: the chunks that each rank holds, and the one that it sends to its right neighbour."""
    title, summary = (words(f"ring.{name}", n=num_ranks) for name in ("title", "summary"))
    pitch = (_WIDTH - 2 * MARGIN + 70) / num_ranks  # from box to box: 70 pixels of it are for the arrow between two
    # The pixels of a rank's box and of a chunk; the chunks stand inside the box, with 6 pixels on both sides.
    width, chunk_width = pitch - 70, (pitch - 82) / num_ranks
    items: list[SceneItem] = [title_label(title)]
    for rank in range(num_ranks):
        x, sent_chunk = MARGIN + rank * pitch, (rank - 1) % num_ranks  # in its first step a rank sends this chunk
        items.append(Rect(x=x, y=44, width=width, height=82, radius=5, fill="panel", stroke="rule"))
        items += _box(x, 58, width, f"rank {rank}", fill=rank_paint(rank))
        for chunk in range(num_ranks):
            sent = {"stroke": "communication", "stroke_width": 3.0}
            outline = sent if chunk == sent_chunk else {"stroke": "rule"}
            left = x + 6 + chunk * chunk_width
            style = {"radius": 3, "fill": "surface", **outline}
            items += labelled_box(left + 2, 82, chunk_width - 4, 34, str(chunk), 13, **style)
        if rank < num_ranks - 1:
            items += _hop(x + width + 4, x + pitch - 4, 99, sent_chunk)
    first, last = MARGIN + width / 2, MARGIN + (num_ranks - 1) * pitch + width / 2
    # The last rank sends to the first one, below all others; its chunk is number num_ranks - 2.
    items += polyline([(last, 126), (last, 152), (first, 152)], colour="communication", width=1.6)
    items.append(Line(x1=first, y1=152, x2=first, y2=130, colour="communication", width=1.6, arrow=True))
    items.append(centred_label((first + last) / 2, 166, words("ring.chunk", n=max(0, num_ranks - 2))))
    return Scene(width=_WIDTH, height=182, title=title, summary=summary, items=items)


def _hop(x1: float, x2: float, y: float, chunk: int) -> Iterator[SceneItem]:
    """An arrow to the next rank, with the chunk that is sent."""
    yield Line(x1=x1, y1=y, x2=x2, y2=y, colour="communication", width=1.6, arrow=True)
    yield centred_label((x1 + x2) / 2, y - 12, words("ring.chunk", n=chunk))


# -- two means -------------------------------------------------------------------------------------------------------
def means_scene(numbers_by_rank: Sequence[Sequence[float]]) -> Scene:
    """The numbers of each rank as dots and their mean, the mean of all numbers, and the mean of the means.

    Raises ValueError where a rank has no number.
    """
    every = [number for numbers in numbers_by_rank for number in numbers]
    if not all(numbers_by_rank):
        counts = [len(numbers) for numbers in numbers_by_rank]
        raise ValueError(f"the ranks hold {counts} numbers; give each at least one")
    means = [sum(numbers) / len(numbers) for numbers in numbers_by_rank]
    true, wrong = sum(every) / len(every), sum(means) / len(means)  # the mean of all numbers; the mean of the means
    scale, bottom = (_WIDTH - 250) / max(every), 72 + len(numbers_by_rank) * _ROW
    title = words("means.title", n=len(every), ranks=len(numbers_by_rank))
    items: list[SceneItem] = [title_label(title)]
    for name, value, anchor in (("true", true, "end"), ("wrong", wrong, "start")):
        x = _ROWS_LEFT + value * scale
        items.append(Line(x1=x, y1=54, x2=x, y2=bottom - 12, colour="ink", width=2, dashed=name == "wrong"))
        text = words(f"means.{name}", n=_short(value))
        items.append(Label(x=x, y=44, text=text, size=13, anchor=anchor, bold=True))
    items += _numbers_axis(max(every), scale, bottom)
    for rank, numbers in enumerate(numbers_by_rank):
        items += _numbers(rank, 78 + rank * _ROW, numbers, scale, means[rank])
    summary = words("means.summary", count=len(every), true=_short(true), wrong=_short(wrong))
    return Scene(width=_WIDTH, height=bottom + 18, title=title, summary=summary, items=items)


def _short(value: float) -> str:
    """A number with three digits."""
    return f"{value:.3g}"


def _numbers_axis(largest: float, scale: float, y: float) -> Iterator[SceneItem]:
    """An axis of whole numbers below the dots."""
    yield Line(x1=_ROWS_LEFT, y1=y - 12, x2=_ROWS_LEFT + largest * scale, y2=y - 12)
    for number in range(0, int(largest) + 1, max(1, round(largest / 5))):
        text = _short(float(number)) if number else f"{words('means.loss')} 0"
        yield centred_label(_ROWS_LEFT + number * scale, y, text, colour="muted")


def _numbers(rank: int, y: float, numbers: Sequence[float], scale: float, mean: float) -> Iterator[SceneItem]:
    """A dot per number; equal numbers form a cluster of two rows around their position."""
    yield Label(x=MARGIN, y=y, text=f"rank {rank}", size=13)
    for value in dict.fromkeys(numbers):
        count = numbers.count(value)
        for number in range(count):
            column, row = divmod(number, 2)
            # Dots are 16 pixels apart. A cluster of n dots has columns 0 to (n - 1) // 2, whose middle is at the value.
            x = _ROWS_LEFT + value * scale + (column - (count - 1) // 2 / 2) * 16
            middle_y = y + (row - 0.5) * 16 if count > 1 else y
            yield _mark(x, middle_y, fill=rank_paint(rank), tooltip=_short(value))
    yield Label(x=_WIDTH - 100, y=y, text=words("means.rank_mean", n=_short(mean)), size=12, colour="muted")


# -- calls that pair by their order ----------------------------------------------------------------------------------
def pairing_scene(calls: Sequence[Sequence[tuple[str, float]]]) -> Scene:
    """What a backend adds up: the calls of each rank in order, as (name, value); a column is one operation.

    Each name has its own colour, so a column of two colours shows what was added up by mistake.
    """
    num_operations = max(map(len, calls))
    names = list(dict.fromkeys(name for of_rank in calls for name, _ in of_rank))  # each once, in order
    title, pitch = words("pairing.title"), (_WIDTH - 110) / num_operations
    # Operation n adds up the n-th call of every rank that makes so many.
    operations = [[of_rank[number] for of_rank in calls if number < len(of_rank)] for number in range(num_operations)]
    items: list[SceneItem] = [title_label(title)]
    for number, operation in enumerate(operations):
        x, bottom = _ROWS_LEFT + number * pitch, 62 + len(calls) * _ROW
        items.append(Label(x=x + 8, y=44, text=words("pairing.call", n=number + 1), size=12, colour="muted"))
        items.append(Rect(x=x, y=56, width=pitch - 14, height=bottom - 48, radius=6, stroke="communication"))
        missing = [rank for rank, of_rank in enumerate(calls) if number >= len(of_rank)]
        total = words("pairing.sum", n=f"{sum(value for _, value in operation):g}")
        result = words("pairing.waits", n=", ".join(map(str, missing))) if missing else total
        items.append(centred_label(x + (pitch - 14) / 2, bottom + 24, result, 13, bold=True))
    for rank, of_rank in enumerate(calls):
        items += _calls_of(rank, 80 + rank * _ROW, of_rank, names, pitch, num_operations)
    sentences = [
        words("pairing.column", number=number, what=[f"{name} {value:g}" for name, value in operation])
        for number, operation in enumerate(operations, 1)
    ]
    height, summary = 104 + len(calls) * _ROW, words("pairing.summary", calls=sentences)
    return Scene(width=_WIDTH, height=height, title=title, summary=summary, items=items)


def _calls_of(
    rank: int, y: float, calls: Sequence[tuple[str, float]], names: list[str], pitch: float, num_operations: int
) -> Iterator[SceneItem]:
    """The calls of one rank as boxes, and a word in each column for which it has no call."""
    yield Label(x=MARGIN, y=y, text=f"rank {rank}", size=13)
    for number, (name, value) in enumerate(calls):
        fill = _NAME_COLOURS[names.index(name) % len(_NAME_COLOURS)]
        yield from _box(_ROWS_LEFT + number * pitch + 12, y, pitch - 38, f"{name}: {value:g}", fill=fill)
    for number in range(len(calls), num_operations):
        yield centred_label(_ROWS_LEFT + (number + 0.5) * pitch - 7, y, words("pairing.nothing"), colour="muted")


# -- kinds of errors -------------------------------------------------------------------------------------------------
def error_kinds_scene() -> Scene:
    """Four ranks for each kind of a RankError: what the rank to blame did instead of the call that the others made."""
    title = words("kinds.title")
    items: list[SceneItem] = [title_label(title)]
    for number, (kind, blamed) in enumerate(BLAMED_RANKS.items()):
        items += _kind_panel(kind, blamed, MARGIN + number * (_PANEL_WIDTH + 8))
    sentences = [  # such as "hang: rank 1; look at …", where to look being the text "kinds.hang"
        words("kinds.said", kind=kind, n=blamed, where=words(f"kinds.{kind}")) for kind, blamed in BLAMED_RANKS.items()
    ]
    return Scene(width=_WIDTH, height=278, title=title, summary=" ".join(sentences), items=items)


def _kind_panel(kind: str, blamed: int, x: float) -> Iterator[SceneItem]:
    """Four ranks on their way into an all_reduce, and what the rank to blame does instead."""
    call_x, line_x = x + _PANEL_CALL, x + _PANEL_LINE
    yield Rect(x=x, y=38, width=_PANEL_WIDTH, height=230, radius=5, stroke="rule")
    yield Label(x=x + 12, y=56, text=kind, size=13, bold=True)
    yield centred_label(call_x, 78, "all_reduce", colour="muted")
    yield Line(x1=call_x, y1=90, x2=call_x, y2=94 + 4 * _PANEL_ROW, dashed=True)
    for rank in range(4):
        y, is_blamed = 110 + rank * _PANEL_ROW, rank == blamed
        yield Label(x=x + 12, y=y, text=f"rank {rank}", size=12, bold=is_blamed)
        differs = is_blamed and kind != "mismatch"  # in a mismatch it calls as well
        # Up to where the rank's line reaches: to the call or, in pixels from it, as far as this kind of error lets it.
        end = call_x + ({"exception": -26, "hang": 54, "died": -24}[kind] if differs else 0)
        goes_past = differs and kind == "hang"
        style = {"colour": rank_paint(rank), "width": 3, "dashed": goes_past, "arrow": goes_past}
        yield Line(x1=line_x, y1=y, x2=end, y2=y, **style)
        if goes_past:
            yield _mark(call_x, y, fill="surface", stroke=rank_paint(rank), stroke_width=2.0)
        elif differs:
            yield from _stops(kind, call_x, y)
        else:
            yield _mark(call_x, y, fill=rank_paint(rank))
            yield Rect(x=call_x + 12, y=y - 8, width=42, height=16, radius=3, **_WAITING)
            if kind == "mismatch":
                yield from _tensor_size(rank, is_blamed, call_x, y)
    yield centred_label(x + _PANEL_WIDTH / 2, 250, words(f"kinds.{kind}"))


def _stops(kind: str, call_x: float, y: float) -> Iterator[SceneItem]:
    """What stands before the call: a cross where the rank raises an exception, and a word for what became of it."""
    if kind == "exception":
        for half in (-6, 6):
            yield Line(x1=call_x - 28, y1=y - half, x2=call_x - 16, y2=y + half, colour="ink", width=2.5)
    text = words("kinds.raises" if kind == "exception" else "kinds.gone")
    yield Label(x=call_x + 8, y=y, text=text, size=12, bold=True)


def _tensor_size(rank: int, is_blamed: bool, call_x: float, y: float) -> Iterator[SceneItem]:
    """The size of the rank's tensor, over the hatched bar: in a mismatch nothing is sent, so nobody waits."""
    style = {"fill": rank_paint(rank)} if is_blamed else {"fill": "surface", "stroke": "rule"}
    size = "101" if is_blamed else "100"  # elements: an example in which one rank has one too many
    return labelled_box(call_x + 12, y - 9, 42, 18, size, bold=is_blamed, radius=3, **style)


# -- rounds of a broadcast -------------------------------------------------------------------------------------------
def broadcast_rounds_scene(plan: CollectiveSchedule) -> Scene:
    """Which ranks have the tensor of a broadcast after each round, with an arrow for each message, and how many."""
    # After each round, whether a rank has the tensor: then any of its chunks contains the numbers of a rank.
    states = [[any(rank) for rank in state] for state in plan.replay()]
    title = words("rounds.title", n=plan.world_size, rounds=plan.num_steps)
    left, first_y, bottom = 120, 76, 80 + plan.world_size * _PANEL_ROW
    pitch = (_WIDTH - 200) / max(1, plan.num_steps)
    items: list[SceneItem] = [title_label(title)]
    for rank in range(plan.world_size):
        y = first_y + rank * _PANEL_ROW
        items.append(Label(x=MARGIN, y=y, text=f"rank {rank}", size=13))
        items.append(Line(x1=left, y1=y, x2=left + plan.num_steps * pitch, y2=y))
    for step in range(plan.num_steps):
        for message in plan.step(step):
            ends = {"x1": left + step * pitch + 8, "x2": left + (step + 1) * pitch - 12}
            ends |= {"y1": first_y + message.sender * _PANEL_ROW, "y2": first_y + message.receiver * _PANEL_ROW}
            items.append(Line(**ends, colour="communication", width=1.8, arrow=True))
    for number, state in enumerate(states):
        x = left + number * pitch
        when = words("rounds.after", n=number) if number else words("rounds.start")
        items.append(centred_label(x, 46, when, colour="muted"))
        for rank, has_tensor in enumerate(state):
            style = {"fill": "gradients"} if has_tensor else {"fill": "surface", "stroke": "rule"}
            items.append(_mark(x, first_y + rank * _PANEL_ROW, **style))
        items.append(centred_label(x, bottom + 8, words("rounds.have", count=sum(state)), 13, bold=True))
    summary = words("rounds.summary", counts=[sum(state) for state in states])
    return Scene(width=_WIDTH, height=bottom + 26, title=title, summary=summary, items=items)
