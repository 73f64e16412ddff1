"""Calls of two ranks, one below the other in their order: which pairs meet, and which rank waits for ever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from helpers.draw.scene import WIDTH, Label, Line, Rect, Scene

_TOP, _STEP, _HEIGHT, _WIDTH = 62.0, 42.0, 28.0, 190.0
_LOOKS = {
    "done": {"fill": "surface", "stroke": "rule"},
    "waits": {"fill": "communication", "stroke": "ink", "stroke_width": 2.0},
    "never": {"fill": "panel"},
}


def calls_scene(
    calls: Sequence[Sequence[str]],
    met: Sequence[tuple[int, int]],
    *,
    wanted: Sequence[tuple[int, int]] = (),
    title: str,
    width: float = WIDTH,
) -> Scene:
    """A Scene of two ranks' calls. met: (place in rank 0's list, place in rank 1's) of the calls that meet.

    A rank waits at its first call that meets nobody; what stands after it is never reached. An arrow goes from a send
    to its receive, a dashed one from a send that waits to the receive that it waits for (wanted, pairs as in met).
    ValueError for other than two ranks.
    """
    if len(calls) != 2:
        raise ValueError(f"calls_scene draws two ranks beside each other, not {len(calls)}")
    columns, items = (width * 0.1, width * 0.9 - _WIDTH), [Label(x=14, y=20, text=title, size=14, bold=True)]
    for rank, (row, x) in enumerate(zip(calls, columns, strict=True)):
        done = {pair[rank] for pair in met}
        waits = next((place for place in range(len(row)) if place not in done), len(row))
        items.append(Label(x=x + _WIDTH / 2, y=_TOP - 16, text=f"rank {rank}", anchor="middle", bold=True))
        for place, text in enumerate(row):
            items += _call(text, x, place, "done" if place < waits else "waits" if place == waits else "never")
    for left, right in (*met, *wanted):
        from_left = calls[0][left].startswith(("send", "isend"))
        items.append(_arrow(left, right, columns, from_left=from_left, dashed=(left, right) in wanted))
    height = _TOP + max(map(len, calls)) * _STEP + 4
    return Scene(width=width, height=height, title=title, summary=_summary(calls, met), items=items)


def blocking_sends() -> Scene:
    """1F1B on two ranks with two micro-batches, where each send waits for its receive."""
    calls = (
        ("send activation 0", "send activation 1", "recv gradient 0", "recv gradient 1"),
        ("recv activation 0", "send gradient 0", "recv activation 1", "send gradient 1"),
    )
    title = "Each send waits for a receive that stands behind the other send"
    return calls_scene(calls, met=[(0, 0)], wanted=[(1, 2), (2, 1)], title=title)


def _call(text: str, x: float, place: int, state: str) -> Iterator[Rect | Label]:
    y = _TOP + place * _STEP
    yield Rect(x=x, y=y, width=_WIDTH, height=_HEIGHT, radius=5, **_LOOKS[state])
    words, on = (f"{text} · waits", "communication") if state == "waits" else (text, "")
    colour = "muted" if state == "never" else "ink"
    middle = {"x": x + _WIDTH / 2, "y": y + _HEIGHT / 2, "anchor": "middle"}
    yield Label(**middle, text=words, on=on, colour=colour, bold=state == "waits")


def _arrow(left: int, right: int, columns: tuple[float, float], *, from_left: bool, dashed: bool) -> Line:
    heights = [_TOP + place * _STEP + _HEIGHT / 2 for place in (left, right)]
    ends = [(columns[0] + _WIDTH + 4, heights[0]), (columns[1] - 4, heights[1])]
    (x1, y1), (x2, y2) = ends if from_left else ends[::-1]
    return Line(x1=x1, y1=y1, x2=x2, y2=y2, colour="communication", width=2.0, arrow=True, dashed=dashed)


def _summary(calls: Sequence[Sequence[str]], met: Sequence[tuple[int, int]]) -> str:
    lists = " ".join(f"Rank {rank}: {', '.join(row)}." for rank, row in enumerate(calls))
    return f"{lists} Calls that meet: {len(met)} pairs. Where a call meets nobody its rank waits."
