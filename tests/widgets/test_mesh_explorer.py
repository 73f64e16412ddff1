"""The explorer of a mesh works without a front end: groups, links and bytes of a rank, everybody's memory."""

import subprocess
import sys

import pytest

from helpers.draw import Rect, cube_scene
from helpers.learner.words import use_language
from helpers.predict.memory import memory
from helpers.quantities.units import format_bytes
from helpers.specs import PRESETS, Plan
from helpers.specs.mesh import Mesh
from helpers.widgets import MeshExplorer
from helpers.widgets.explorer import Picks
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


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_higher_stage_of_zero_holds_less(zero):
    shown = MeshExplorer(pp=1, dp=8, zero=zero)
    lower = MeshExplorer(pp=1, dp=8, zero=max(0, zero - 1))
    assert zero == 0 or shown.memories[0].total < lower.memories[0].total


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            {"dp": 64},
            "takes 256 ranks, but the picture holds at most 64. With the other two as they are, dp is at most 16",
        ),
        ({"dp": 8, "tp": 8}, "holds at most 64. With the other two as they are, tp is at most 4"),
        ({"dp": 4, "sequences": 2}, "2 sequences are too few for 4 replicas"),
        ({"zero": 3}, "ZeRO-3 with pp 2 would send its messages for each of 32"),
        ({"model": "gpt2-medium", "pp": 16, "dp": 1}, "24 layers cannot be divided into 16 equal stages. pp 8 works"),
    ],
)
def test_what_cannot_be_is_a_sentence_in_the_place_of_the_picture(setting, sentence):
    shown = MeshExplorer()
    for name, value in setting.items():
        getattr(shown, name).value = value
    with pytest.raises(ValueError, match=sentence):
        _ = shown.scene
    assert 'role="alert"' in shown.html.value and "inert" in shown.html.value
    shown.dp.value, shown.pp.value, shown.tp.value, shown.zero.value, shown.sequences.value = 2, 2, 2, 0, 64
    assert "<svg" in shown.html.value and "inert" not in shown.html.value


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
    assert 'role="group"' in shown.html.value and shown.html.value.count('tabindex="0"') == 1
    (listens,) = (child for child in shown.children if isinstance(child, Picks))
    for message in ({"pick": "5"}, {"pick": "64"}, {"pick": "one"}, {"pick": 1}, "5"):
        listens._handle_custom_msg(message, [])
    assert shown.rank.value == 5 and 'data-pick="5" role="button" aria-pressed="true"' in shown.html.value


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
    assert shown.rank.value == 31 and shown.html.value.count("rank 31 holds")


def test_it_speaks_chinese():
    with use_language("zh"):
        shown = MeshExplorer()
        assert "副本" in shown.sentence and "个节点" in shown.scene.title and "节点 0" in shown.scene.summary
        assert "从左到右" in cube_scene(Mesh(pp=2, tp=2)).summary


def test_it_needs_no_torch():
    code = "import sys; from helpers.widgets import MeshExplorer; MeshExplorer().text; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
