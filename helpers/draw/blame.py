"""Pictures of chapter 00's last stations: which rank is to blame for each kind of error, and how many have a tensor."""

from __future__ import annotations

from collections.abc import Iterator

from helpers.draw.palette import rank_paint
from helpers.draw.scene import Label, Line, Rect, Scene
from helpers.learner.words import book
from helpers.predict.traffic.algorithms import Schedule

SAYS = book("first_contact")
KINDS = {"exception": 2, "hang": 1, "mismatch": 3, "died": 1}  # of a RankError, and the rank to blame here
_WIDTH, _SIDE, _ROW = 720.0, 14.0, 34.0
_PANEL, _CALL = 167.0, 104.0  # pixels: of a kind, and from its left edge to the call
_DOT = {"width": 14.0, "height": 14.0, "radius": 6.0}
Item = Rect | Label | Line


def _title(text: str) -> Label:
    return Label(x=_SIDE, y=20, text=text, size=14, bold=True)


# -- kinds of errors -------------------------------------------------------------------------------------------------
def error_kinds_scene() -> Scene:
    """Four ranks in each kind of a RankError: what one of them did instead of the call, and where to look first."""
    title = SAYS("kinds.title")
    items: list[Item] = [_title(title)]
    for number, (kind, blamed) in enumerate(KINDS.items()):
        items += _kind(kind, blamed, _SIDE + number * (_PANEL + 8))
    said = [SAYS("kinds.said", kind=kind, n=blamed, where=SAYS(f"kinds.{kind}")) for kind, blamed in KINDS.items()]
    return Scene(width=_WIDTH, height=278, title=title, summary=" ".join(said), items=items)


def _kind(kind: str, blamed: int, x: float) -> Iterator[Item]:
    call = x + _CALL
    yield Rect(x=x, y=38, width=_PANEL, height=230, radius=5, stroke="rule")
    yield Label(x=x + 12, y=56, text=kind, size=13, bold=True)
    yield Label(x=call, y=78, text="all_reduce", size=12, anchor="middle", colour="muted")
    yield Line(x1=call, y1=90, x2=call, y2=94 + 4 * _ROW, dashed=True)
    for rank in range(4):
        y = 110 + rank * _ROW
        yield Label(x=x + 12, y=y, text=f"rank {rank}", size=12, bold=rank == blamed)
        yield from (_DID[kind] if rank == blamed else _waits)(rank, x + 58, call, y)
        if kind == "mismatch":
            yield from _shape(rank, blamed, call, y)
    yield Label(x=x + _PANEL / 2, y=250, text=SAYS(f"kinds.{kind}"), size=12, anchor="middle")


def _waits(rank: int, left: float, call: float, y: float) -> Iterator[Item]:
    yield Line(x1=left, y1=y, x2=call, y2=y, colour=rank_paint(rank), width=3)
    yield Rect(x=call - 7, y=y - 7, fill=rank_paint(rank), **_DOT)
    yield Rect(x=call + 12, y=y - 8, width=42, height=16, radius=3, fill="panel", texture="hatch")


def _raises(rank: int, left: float, call: float, y: float) -> Iterator[Item]:
    yield Line(x1=left, y1=y, x2=call - 26, y2=y, colour=rank_paint(rank), width=3)
    for slope in (-6, 6):
        yield Line(x1=call - 28, y1=y - slope, x2=call - 16, y2=y + slope, colour="ink", width=2.5)
    yield Label(x=call + 8, y=y, text=SAYS("kinds.raises"), size=12, bold=True)


def _goes_on(rank: int, left: float, call: float, y: float) -> Iterator[Item]:
    yield Line(x1=left, y1=y, x2=call + 54, y2=y, colour=rank_paint(rank), width=3, dashed=True, arrow=True)
    yield Rect(x=call - 7, y=y - 7, fill="surface", stroke=rank_paint(rank), stroke_width=2.0, **_DOT)


def _is_gone(rank: int, left: float, call: float, y: float) -> Iterator[Item]:
    yield Line(x1=left, y1=y, x2=call - 24, y2=y, colour=rank_paint(rank), width=3)
    yield Label(x=call + 8, y=y, text=SAYS("kinds.gone"), size=12, bold=True)


def _shape(rank: int, blamed: int, call: float, y: float) -> Iterator[Item]:
    """The size of its tensor, in place of the hatch: nobody waits, since nothing was sent."""
    is_odd = rank == blamed
    look = {"fill": rank_paint(rank)} if is_odd else {"fill": "surface", "stroke": "rule"}
    yield Rect(x=call + 12, y=y - 9, width=42, height=18, radius=3, **look)
    on = rank_paint(rank) if is_odd else ""
    yield Label(x=call + 33, y=y, text=str(100 + is_odd), size=12, anchor="middle", on=on, bold=is_odd)


_DID = {"exception": _raises, "hang": _goes_on, "mismatch": _waits, "died": _is_gone}


# -- rounds ----------------------------------------------------------------------------------------------------------
def broadcast_rounds_scene(plan: Schedule) -> Scene:
    """Who has the tensor of a broadcast after each round, an arrow for each message, and how many have it."""
    states = [[any(rank) for rank in state] for state in plan.replay()]
    title = SAYS("rounds.title", n=plan.world_size, rounds=plan.num_steps)
    across, bottom = (_WIDTH - 200) / max(1, plan.num_steps), 80 + plan.world_size * _ROW
    items: list[Item] = [_title(title)]
    for rank in range(plan.world_size):
        y = 76 + rank * _ROW
        items.append(Label(x=_SIDE, y=y, text=f"rank {rank}", size=13))
        items.append(Line(x1=120, y1=y, x2=120 + plan.num_steps * across, y2=y))
    for step in range(plan.num_steps):
        for one in plan.step(step):
            ends = {"x1": 120 + step * across + 8, "x2": 120 + (step + 1) * across - 12}
            ends |= {"y1": 76 + one.sender * _ROW, "y2": 76 + one.receiver * _ROW}
            items.append(Line(**ends, colour="communication", width=1.8, arrow=True))
    for number, state in enumerate(states):
        x = 120 + number * across
        items.append(Label(x=x, y=46, text=_when(number), size=12, anchor="middle", colour="muted"))
        for rank, has in enumerate(state):
            look = {"fill": "gradients"} if has else {"fill": "surface", "stroke": "rule"}
            items.append(Rect(x=x - 7, y=69 + rank * _ROW, **_DOT, **look))
        have = SAYS("rounds.have", count=sum(state))
        items.append(Label(x=x, y=bottom + 8, text=have, size=13, anchor="middle", bold=True))
    summary = SAYS("rounds.summary", counts=[sum(state) for state in states])
    return Scene(width=_WIDTH, height=bottom + 26, title=title, summary=summary, items=items)


def _when(number: int) -> str:
    return SAYS("rounds.after", n=number) if number else SAYS("rounds.start")
