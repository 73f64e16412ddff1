"""Every number of a row stands in its matrix, with its rank; f and g communicate in one pass each."""

import pytest

from helpers.draw import Label, Line, Rect, tensor_layer_scene
from helpers.draw.chapters.tensor_parallel import (
    equations_items,
    equations_legend,
    equations_words,
    number_text,
    tensor_split_scene,
)
from helpers.predict.by_hand.tensor_split import FORWARD, INPUTS, ShardedMatrix, split
from tests.draw.scenes import SCENES, tooltips


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(3, 2, "3"), (-0.25, 2, "-0.25"), (2.0, 2, "2"), (-0.004, 2, "0"), (10.35, 1, "10.3"), (0, 2, "0"), (10, 2, "10")],
)
def test_numbers_are_short(value, digits, text):
    assert number_text(value, digits) == text


def test_each_cell_says_where_it_stands_and_whose_it_is():
    said = tooltips(SCENES["split MLP"])
    assert "one process: A, row 0, column 3: 2, of rank 1" in said
    assert "rank 1: A₁, row 0, column 1: 2, of rank 1" in said
    assert "rank 0: X, row 3, column 0: -1, on every rank" in said
    assert "all-reduce of Z: 12 elements" in said and "Z₁: a partial sum of one rank" in said


def test_terms_are_framed_and_messages_are_arrows():
    scene = SCENES["split MLP"]
    frames = [item for item in scene.items if isinstance(item, Rect) and item.stroke == "communication"]
    arrows = [item for item in scene.items if isinstance(item, Line) and item.colour == "communication"]
    assert len(frames) == 2 + 1 and len(arrows) == 2  # one a rank, and the legend's
    assert all(arrow.arrow for arrow in arrows)


def test_never_colour_alone():
    """What a rank has carries the rank in its name, and each row the rank's own."""
    names = {label.text for label in SCENES["split attention"].labels()}
    assert {"rank 0", "rank 3", "Wq₀", "Wv₃", "O₂", "every rank", "to be joined"} <= names


def test_words():
    one = split("mlp", 2, True)[FORWARD]
    assert equations_words(one.by_rank[1]) == ("all-gather of X, X · A₁ ReLU G₁ · B₁ = Z₁, reduce-scatter of Z, own Z")
    assert "rank 0: X · A₀ ReLU G₀ · B₀ = Z₀, all-reduce of Z, Z." in SCENES["split MLP"].summary
    assert "products 3.00 s, link 1.00 s" in SCENES["split MLP"].summary


def test_the_legend_shows_what_occurs():
    plain = split("columns", 2)[FORWARD]
    legend = equations_legend({"one process": plain.one_process})
    assert [word for word, _ in legend] == ["rank 0", "rank 1", "every rank"]


def test_bars_share_a_scale_and_say_their_sum():
    scene = SCENES["split MLP"]
    bars = {item.tooltip: item.width for item in scene.items if isinstance(item, Rect) and "," in item.tooltip}
    assert bars["products, forward: 2.00 s"] == pytest.approx(2 * bars["products, backward: 1.00 s"], rel=0.02)
    assert bars["link, forward: 1.00 s"] == pytest.approx(bars["products, backward: 1.00 s"])
    assert {"3.00 s", "1.00 s", "forward 2.00 s"} <= {label.text for label in scene.labels()}


def test_nothing_to_send_draws_no_bar():
    one = split("embedding", 2)[FORWARD]
    scene = tensor_split_scene(one, title="none", bars={"link": {"forward": ("other", 0.0)}}, bars_title="none")
    assert "0 s" in [label.text for label in scene.labels()]


def test_numbers_get_one_digit_where_two_do_not_fit():
    one = split("attention", 2)[INPUTS]
    items = equations_items({"one process": one.one_process}, 0)[0]
    texts = [item.text for item in items if isinstance(item, Label)]
    digits = {len(text.partition(".")[2]) for text in texts if text.strip("-").replace(".", "").isdigit()}
    assert digits == {0, 1}


def test_a_row_that_is_too_wide_gets_a_sentence():
    wide = ShardedMatrix(name="A", values=((1,) * 60,))
    with pytest.raises(ValueError, match="row 'rank 0' needs cells of less than 15 pixels to fit into 800"):
        equations_items({"rank 0": [wide]}, 0)


def test_g_sends_in_forward_and_f_in_backward():
    scene = tensor_layer_scene(title="one layer")
    named = [(one.text, one.on) for one in scene.labels() if one.text in ("f", "g")]
    forward, backward = named[:4], named[4:]
    assert [name for name, on in forward if on == "communication"] == ["g", "g"]
    assert [name for name, on in backward if on == "communication"] == ["f", "f"]
