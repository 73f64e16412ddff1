"""The explorer of a mesh works without a front end: groups, links and bytes of a rank, everybody's memory."""

import pytest

from helpers.draw import Rect
from helpers.predict.memory import memory
from helpers.quantities.units import format_bytes
from helpers.specs import PRESETS, Plan
from helpers.specs.mesh import Mesh
from helpers.widgets import MeshExplorer
from helpers.widgets.explorer_view import PicksView
from tests.draw.scenes import tooltips


def lit(shown, kind):
    """The ranks whose cards have the colour of an axis."""
    cards = (item for item in shown.scene.items if isinstance(item, Rect) and item.fill == kind)
    return [int(card.tooltip.split(":")[0].split()[1]) for card in cards if card.tooltip.endswith(tuple("01234567"))]


def test_the_groups_of_the_chosen_rank_light_up():
    shown = MeshExplorer(rank=5)
    mesh = Mesh(dp=2, pp=2, tp=2)
    for axis, kind in {"dp": "gradients", "pp": "buffers", "tp": "activations"}.items():
        assert lit(shown, kind) == [peer for peer in mesh.ranks_along(axis, 5) if peer != 5]
    shown.rank.value = 2
    assert lit(shown, "buffers") == [6]


def test_bytes_and_link_stand_on_each_axis():
    shown = MeshExplorer(gpus_per_node=8, dp=2, pp=2, tp=4)
    assert {axis: shown.link(axis, 0) == shown.cluster.intra for axis in ("dp", "pp", "tp")} == {
        "dp": True, "pp": False, "tp": True,
    }  # fmt: skip
    assert any(text.text.startswith("NVLink 4 in node 0") for text in shown.scene.labels())
    shown.gpus_per_node.value = 2
    assert shown.link("tp", 0) != shown.cluster.intra and "Here tp spans several nodes" in shown.sentence


def test_a_group_that_has_several_cards_to_itself_says_how_many():
    labels = [label.text for label in MeshExplorer(dp=1, pp=2, tp=8).scene.labels()]
    assert any(text.startswith("network, 4 cards × 50.0 GB/s") for text in labels)
    assert not any("× 50.0" in label.text for label in MeshExplorer().scene.labels())


def test_more_copies_send_less_over_tp_and_as_much_over_dp():
    """A copy has fewer of the step's sequences, and its gradients are as many as before."""
    few, many = MeshExplorer(dp=2).sent_bytes(0), MeshExplorer(dp=8).sent_bytes(0)
    assert many["tp"] == few["tp"] / 4 and many["dp"] == pytest.approx(few["dp"] * (7 / 8) / (1 / 2))


def test_each_rank_holds_what_the_formulas_say_of_its_stage():
    shown, plan = MeshExplorer(zero=1), Plan(dp=2, pp=2, tp=2, zero=1, num_microbatches=32)
    held = [one.total for one in shown.memories]
    assert held == [memory(PRESETS["llama3-8b"], plan, stage).total for stage in (0, 1) for _ in range(4)]
    assert [(row["ranks"], row["nodes"]) for row in shown.rows] == [("0–3", "0"), ("4–7", "1")]
    assert [row["holds"] for row in shown.rows] == [format_bytes(held[0]), format_bytes(held[4])]
    assert f"rank 7: pp 1, dp 1, tp 1; it holds {format_bytes(held[7])}" in tooltips(shown.scene)


def test_a_higher_stage_of_zero_holds_less():
    held = [MeshExplorer(pp=1, dp=8, zero=zero).memories[0].total for zero in range(4)]
    assert held == sorted(held, reverse=True) and len(set(held)) == 4


def test_parts_keep_their_place_whatever_the_dials_say():
    """So that a turned dial moves nothing but what it is about."""
    settings = ({}, {"dp": 16, "gpus_per_node": 2}, {"dp": 1, "pp": 1, "tp": 1}, {"tp": 8, "gpus_per_node": 8})
    scenes = [MeshExplorer(**setting).scene for setting in settings]
    words = ("groups of rank 0", "crosses", "tp")
    places = [[(label.x, label.y) for label in scene.labels() if label.text in words] for scene in scenes]
    assert len(set(map(str, places))) == 1 and len(places[0]) == 3
    assert len({scene.height for scene in scenes}) == 1
    legend = [[label.x for label in scene.labels() if label.y > scene.height - 45] for scene in scenes]
    assert len(legend[0]) == 6 and len(set(map(str, legend))) == 1


@pytest.mark.parametrize(
    "setting", [{}, {"dp": 16, "gpus_per_node": 2}, {"dp": 1, "pp": 8, "tp": 8, "gpus_per_node": 8}]
)
def test_it_can_be_read_in_a_window_of_1100_pixels(setting):
    """645 pixels are left for an output beside the list of files, 680 from top to bottom, 180 of them for the dials."""
    scene = MeshExplorer(**setting).scene
    assert min(label.size for label in scene.labels()) * 645 / scene.width >= 12
    assert scene.height * 645 / scene.width <= 500
    places = [label for label in scene.labels() if label.text.count(",") == 2]
    assert setting == {} or len(places) >= 40  # what does not fit is left to the tooltip


def test_a_colour_stands_for_one_thing():
    shown = MeshExplorer(dp=1, zero=0)  # no group on dp
    painted = {item.fill for item in shown.scene.items if isinstance(item, Rect) and item.y > 320}
    assert painted <= {"", "ink", "panel"}, "memory is grey"


def test_a_click_on_a_card_chooses_its_rank():
    shown = MeshExplorer()
    picks = [item for item in shown.scene.items if isinstance(item, Rect) and item.pick]
    assert [item.pick for item in picks if item.is_picked] == ["0"] and len(picks) == 8
    assert 'role="group"' in shown.widget.html.value and shown.widget.html.value.count('tabindex="0"') == 1
    (listens,) = (child for child in shown.widget.children if isinstance(child, PicksView))
    for message in ({"pick": "5"}, {"pick": "64"}, {"pick": "one"}, {"pick": 1}, "5"):
        listens._handle_custom_msg(message, [])
    assert shown.rank.value == 5 and 'data-pick="5" role="button" aria-pressed="true"' in shown.widget.html.value


def test_what_does_not_fit_is_framed_on_its_card_and_in_the_bar():
    few, many = MeshExplorer(dp=1, pp=1, tp=1).scene, MeshExplorer().scene
    signs = [[item for item in scene.items if isinstance(item, Rect) and item.fill == "sign"] for scene in (few, many)]
    assert [len(each) for each in signs] == [1, 0]


def test_a_smaller_mesh_takes_its_last_rank():
    shown = MeshExplorer(rank=7)
    shown.tp.value = 1
    assert shown.rank.value == 3 and "rank 3 holds" in shown.scene.summary


def test_the_end_of_the_rank_dial_is_the_last_rank_of_any_mesh():
    """The browser's key End sends the maximum with which the dial was drawn."""
    shown = MeshExplorer()
    end, shown.dp.value = shown.rank.options[-1][1], 8
    shown.rank.value = end
    assert shown.rank.value == 31 and shown.widget.html.value.count("rank 31 holds")
