"""A mesh as a solid: every rank once, and the thick edges are the groups of one rank."""

import pytest

from helpers.draw import Label, Line, Rect, cube_scene
from helpers.draw.mesh import AXIS_KINDS
from helpers.specs.mesh import Mesh
from tests.draw.scenes import SCENES

MESH = Mesh(dp=2, pp=2, tp=2)


def lit(scene):
    """Axis to the edges that are drawn thick, as pairs of ranks."""
    edges = {axis: set() for axis in ("dp", "pp", "tp")}
    for line in (item for item in scene.items if isinstance(item, Line) and item.width == 6):
        axis, words = line.tooltip.split(": ")
        edges[axis].add(tuple(int(word) for word in words.split() if word.isdigit()))
        assert line.colour == AXIS_KINDS[axis]
    return edges


def cards(scene):
    boxes = (item for item in scene.items if isinstance(item, Rect) and item.tooltip.startswith("rank "))
    return {int(box.tooltip.split(":")[0].split()[1]): box for box in boxes}


@pytest.mark.parametrize("rank", range(8))
def test_the_thick_edges_are_the_groups_of_the_rank(rank):
    pairs = {axis: {tuple(MESH.ranks_along(axis, rank))} for axis in ("dp", "pp", "tp")}
    assert lit(cube_scene(MESH, rank)) == pairs


def test_a_cube_has_eight_cards_and_twelve_edges():
    scene = SCENES["cube"]
    edges = [item for item in scene.items if isinstance(item, Line) and item.width == 2]
    assert sorted(cards(scene)) == list(range(8)) and len(edges) == 12
    assert scene.summary.endswith("On tp rank 0 has a group with 0, 1.")


def test_stages_go_right_parts_go_down_and_copies_go_back():
    at = {rank: (box.x, box.y) for rank, box in cards(SCENES["cube"]).items()}
    assert at[4][0] > at[0][0] and at[4][1] == at[0][1]  # pp
    assert at[1][0] == at[0][0] and at[1][1] > at[0][1]  # tp
    assert at[2][0] > at[0][0] and at[2][1] < at[0][1]  # dp


@pytest.mark.parametrize("name", ["cube", "cube of 12", "cube without a rank"])
def test_no_card_hides_another_or_lies_below_the_words(name):
    boxes = list(cards(SCENES[name]).values())
    for one, other in ((a, b) for a in boxes for b in boxes if a is not b):
        assert abs(one.x - other.x) >= one.width or abs(one.y - other.y) >= one.height
    said = [label.x for label in SCENES[name].labels() if "front to back" in label.text]
    assert max(box.x + box.width for box in boxes) < min(said)


def test_without_a_rank_nothing_is_lit():
    scene = SCENES["cube without a rank"]
    assert not any(lit(scene).values()) and {box.fill for box in cards(scene).values()} == {"surface"}


def test_numbers_without_names_are_named_once_above():
    def said(scene):
        return {item.text for item in scene.items if isinstance(item, Label)}

    assert "on each card: pp, dp, tp" in said(cube_scene(Mesh(dp=2, pp=2, tp=4)))
    assert "on each card: pp, dp, tp" not in said(cube_scene(MESH))
