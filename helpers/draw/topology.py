"""Draws who sends to whom: ranks on a ring, or as a star around a master, with an arrow for each message.

Chapters 01 and 02 and the labs 01 to 03 use it.

A Scene is a picture as plain data: rectangles (Rect), labels and lines, in pixels from the top left corner. Plain
numbers in the code are such pixels. A kind of the palette, such as "forward", stands for a colour and a texture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from helpers.draw.scene import Label, Line, Rect, Scene, labelled_box, text_width, title_label

TOPOLOGIES = ("ring", "star")
# Pixels: half the width of a rank's box, and half the height of the ellipse on which the ranks of a ring or star lie.
_HALF_BOX, _RADIUS = 30.0, 104.0
_HEADER, _WIDTH = 44.0, 440.0  # pixels: above the boxes, and the width of the picture
Edge = tuple[int, int]  # (sender, receiver)


def topology_scene(
    kind: str,
    num_ranks: int,
    *,
    title: str = "",
    edges: Mapping[Edge, str] | None = None,
    names: Mapping[int, str] | None = None,
) -> Scene:
    """A Scene of `num_ranks` ranks; `edges` maps (sender, receiver) to the text at that arrow.

    Without `edges` each topology has its own. ring: each rank sends to the next. star: rank 0 sends to every other
    rank. `names` replaces "rank 0" by, say, "master".
    Raises ValueError for an unknown topology, or for an edge to a missing rank.
    """
    if kind not in TOPOLOGIES:
        raise ValueError(f"no topology {kind!r}; the known ones are {', '.join(TOPOLOGIES)}")
    if num_ranks < 2:
        raise ValueError(f"num_ranks is {num_ranks!r}, but a topology needs at least 2")
    arrows = dict.fromkeys(_default_edges(kind, num_ranks), "") if edges is None else dict(edges)
    wrong = [edge for edge in arrows if not all(0 <= rank < num_ranks for rank in edge) or edge[0] == edge[1]]
    if wrong:
        raise ValueError(f"edge {wrong[0]} does not join two of the ranks 0 to {num_ranks - 1}")
    middles = _middles(kind, num_ranks)
    height = max(y for _, y in middles) + 32
    title = title or f"{kind} of {num_ranks} ranks"
    items = [title_label(title)]
    for (sender, receiver), text in arrows.items():
        # The last argument is whether there is an arrow in the opposite direction.
        items += _arrow(middles[sender], middles[receiver], text, (receiver, sender) in arrows)
    for rank, middle in enumerate(middles):
        items += _box((names or {}).get(rank, f"rank {rank}"), middle, is_master=kind == "star" and rank == 0)
    summary = f"Messages: {'; '.join(f'{a} to {b} {text}'.strip() for (a, b), text in arrows.items())}."
    return Scene(width=_WIDTH, height=height, title=title, summary=summary, items=items)


def _default_edges(kind: str, num_ranks: int) -> list[Edge]:
    """Who sends to whom in this topology."""
    if kind == "ring":
        return [(rank, (rank + 1) % num_ranks) for rank in range(num_ranks)]
    return [(0, rank) for rank in range(1, num_ranks)]


def _middles(kind: str, num_ranks: int) -> list[tuple[float, float]]:
    """The middle of each rank's box."""
    on_circle = num_ranks if kind == "ring" else num_ranks - 1
    angles = [number / on_circle * 2 * math.pi - math.pi / 2 for number in range(on_circle)]
    centre = _WIDTH / 2, _HEADER + 24 + _RADIUS
    circle = [(centre[0] + (_WIDTH / 2 - 80) * math.cos(a), centre[1] + _RADIUS * math.sin(a)) for a in angles]
    return circle if kind == "ring" else [centre, *circle]


def _arrow(start: tuple, end: tuple, text: str, is_double: bool) -> Iterator[Line | Label]:
    """An arrow from the edge of one box to the edge of the other; two opposite arrows lie side by side."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    unit_x, unit_y = (x2 - x1) / length, (y2 - y1) / length
    sideways = 5.0 if is_double else 0.0
    shift_x, shift_y = -unit_y * sideways, unit_x * sideways  # at a right angle to the arrow
    inside_box = _distance_to_edge(unit_x, unit_y)
    ends = {"x1": x1 + unit_x * inside_box + shift_x, "y1": y1 + unit_y * inside_box + shift_y}
    ends |= {"x2": x2 - unit_x * inside_box + shift_x, "y2": y2 - unit_y * inside_box + shift_y}
    line = Line(**ends, colour="communication", width=1.8, arrow=True, tooltip=text)
    yield line
    if text:
        yield _arrow_label(line, -unit_y, unit_x, text, is_double)


def _distance_to_edge(unit_x: float, unit_y: float) -> float:
    """From the middle of a box to where a ray leaves it, and four pixels more."""
    to_side = (_HALF_BOX + 4) / abs(unit_x) if abs(unit_x) > 1e-9 else math.inf
    # 17: half the height of a box, and four pixels more. 1e-9: a ray parallel to an edge never meets it.
    to_top = 17 / abs(unit_y) if abs(unit_y) > 1e-9 else math.inf
    return min(to_side, to_top)


def _arrow_label(line: Line, normal_x: float, normal_y: float, text: str, is_double: bool) -> Label:
    """The text on the right of the arrow, clear of it by the text's width; opposite arrows each have their own side."""
    distance = 8 + abs(normal_x) * text_width(text, 11) / 2
    share = 0.42 if is_double else 0.5  # of the arrow's length: not in the middle where two labels would meet
    x, y = line.x1 + (line.x2 - line.x1) * share, line.y1 + (line.y2 - line.y1) * share
    return Label(x=x + normal_x * distance, y=y + normal_y * distance, text=text, size=11, anchor="middle")


def _box(name: str, middle: tuple[float, float], *, is_master: bool) -> Iterator[Rect | Label]:
    """A rank as a box with its name; the master of a star has a colour of its own."""
    left, top = middle[0] - _HALF_BOX, middle[1] - 13
    fill = "parameters" if is_master else "buffers"
    return labelled_box(left, top, 2 * _HALF_BOX, 26, name, radius=5, fill=fill)
