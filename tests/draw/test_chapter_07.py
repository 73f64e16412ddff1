"""The pictures of chapter 07: who sends in which pass, and words that stand off a curve that rises."""

from helpers.draw import Axis, Label, Matrix, Rect, curves_scene, shards_scene, tensor_layer_scene


def test_g_sends_in_forward_and_f_in_backward():
    scene = tensor_layer_scene(title="one layer")
    named = [(one.text, one.on) for one in scene.labels() if one.text in ("f", "g")]
    forward, backward = named[:4], named[4:]
    assert [name for name, on in forward if on == "communication"] == ["g", "g"]
    assert [name for name, on in backward if on == "communication"] == ["f", "f"]


def test_the_words_of_a_mark_stand_below_where_it_is_asked():
    axis = Axis(name="x", ticks=(0, 5, 10))
    given = dict(x=axis, y=axis, marks=[(5, 5, "here")], title="up")
    above, below = (curves_scene({"a": [(0, 0), (10, 10)]}, **given, marks_below=low) for low in (False, True))
    ring = next(item for item in below.items if isinstance(item, Rect) and item.stroke_width == 2.5)
    ys = [next(one.y for one in scene.labels() if one.text == "here") for scene in (above, below)]
    assert ys[0] < ring.y < ring.y + ring.height < ys[1]


def test_what_a_rank_holds_can_be_said_in_other_words_and_cells_can_be_smaller():
    one = Matrix(name="K", num_rows=4, num_columns=3, cut="rows", num_parts=4, held="a copy of 1 of 2")
    large, small = shards_scene([one]), shards_scene([one], largest=12)
    assert "a copy of 1 of 2" in {item.text for item in small.items if isinstance(item, Label)}
    assert small.height < large.height
