"""The pictures of chapter 14: bars of experts as high as their rows, and every row of a token before and after."""

from helpers.draw import Rect
from helpers.draw.chapters.experts import dispatch_scene, expert_load_scene

LOAD = [30, 10, 0, 40]


def rects(scene, kind):
    return [item for item in scene.items if isinstance(item, Rect) and item.fill == kind and item.tooltip]


def test_bars_are_as_high_as_the_rows_and_have_their_ranks_colour():
    scene = expert_load_scene(LOAD, title="Load", ranks=2)
    (first, second), (third, fourth) = rects(scene, "rank0"), rects(scene, "rank1")
    assert first.height == 3 * second.height and third.height == 0 and fourth.height == 4 * second.height
    assert scene.summary == "The busiest expert gets 40 rows, 2.00 times the mean."


def test_more_ranks_than_colours_have_one_colour():
    scene = expert_load_scene([1] * 16, title="Load", ranks=16)
    assert len(rects(scene, "rank0")) == 16 and "colours of their ranks" not in str(scene.items)


def test_what_exceeds_the_capacity_is_drawn_as_dropped():
    scene = expert_load_scene(LOAD, title="Load", capacity=25)
    kept, dropped = rects(scene, "rank0"), rects(scene, "waiting")
    assert len(dropped) == 2 and dropped[0].height / kept[0].height == 5 / 25
    assert dropped[0].y + dropped[0].height == kept[0].y
    assert not rects(expert_load_scene(LOAD, title="Load", capacity=40), "waiting")


def test_each_row_is_drawn_before_and_after_dispatch():
    choices = [[(0, 3), (1, 3)], [(3, 2), (0, 1)]]
    scene = dispatch_scene(choices, 4, title="Rows")
    squares = [item for item in scene.items if isinstance(item, Rect) and item.fill.startswith("rank")]
    assert len(squares) == 2 * 8 and sum(square.fill == "rank0" for square in squares) == 8
    assert scene.summary == "expert 0: 2 rows. expert 1: 2 rows. expert 2: 1 rows. expert 3: 3 rows."


def test_a_column_before_dispatch_is_a_token():
    choices = [[(0, 3), (1, 3), (2, 1)], [(3, 2), (0, 1), (0, 2)]]
    scene = dispatch_scene(choices, 4, title="Rows")
    squares = [item for item in scene.items if isinstance(item, Rect) and item.fill == "rank0"][:6]
    assert len({square.y for square in squares[:3]}) == 1 and squares[3].y > squares[0].y
    assert [square.x for square in squares[:3]] == [square.x for square in squares[3:]]
    places = [(item.x, item.y) for item in scene.items if isinstance(item, Rect)]
    assert len(places) == len(set(places)) == 2 * 12
