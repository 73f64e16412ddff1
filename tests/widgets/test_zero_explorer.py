"""The explorer works without a front end: steps, stages and the figures of the paper."""

import pytest

from helpers.draw import Label, Line, Rect
from helpers.widgets import ZeroExplorer
from tests.draw.scenes import tooltips
from tests.widgets.explorers import turned


def explorer(step=1, **settings):
    return turned(ZeroExplorer(), **settings, step=step)


def labels(shown):
    return [item.text for item in shown.scene.items if isinstance(item, Label)]


def test_the_figures_of_the_paper():
    """Rajbhandari et al. 2020 (ZeRO), figure 1: 7.5 billion parameters on 64 ranks."""
    shown = explorer()
    assert [row["total"] for row in shown.rows] == ["120 GB", "31.4 GB", "16.6 GB", "1.88 GB"]


def test_stage_3_sends_half_as_much_again():
    shown = explorer()
    sent = [shown.sent_bytes(stage) for stage in range(4)]
    assert sent[1] == pytest.approx(sent[0]) and sent[3] == pytest.approx(1.5 * sent[0])
    assert shown.seconds(3) > 1.4 * shown.seconds(0)


def test_gather_compute_free():
    said = [explorer(step).sentence for step in (2, 3, 4)]
    assert said[0].startswith("Forward, layer a: gather the elements that a rank lacks. The all-gather makes each rank")
    assert "send 4 B, 4 of 36 B so far. A rank holds 46 B now and 56 B at most." in said[0]
    assert said[1].startswith("Forward, layer a: compute") and "46 B now" in said[1]
    assert said[2].startswith("Forward, layer a: free what other ranks own. A rank holds 42 B now")
    assert said[2].endswith("With 7.5 billion parameters on 64 ranks, a rank holds 1.88 GB between steps.")


def test_a_number_says_who_holds_it():
    said = tooltips(explorer(2).scene)
    assert "rank 0, parameters, a1: 0, the same on every rank" in said
    assert "rank 1, parameters, a1: 0, its own shard" in said
    assert "rank 0 does not hold b1 of the parameters" in said
    assert "rank 0, gradients, c2: -6, of its own batch" in tooltips(explorer(12).scene)
    assert "rank 0, parameters, a1: 0, not used" in tooltips(explorer(11, stage=2).scene)


def test_messages_are_arrows_between_the_ranks():
    sent = [item for item in explorer(2).scene.items if isinstance(item, Line) and item.arrow]
    assert len(sent) == 4 and labels(explorer(2)).count("all-gather") == 2
    assert not [item for item in explorer(3).scene.items if isinstance(item, Line) and item.arrow]


def test_what_is_computed_and_what_is_sent_is_framed():
    frames = {
        step: [item.stroke for item in explorer(step).scene.items if isinstance(item, Rect) and item.stroke_width == 2]
        for step in (2, 3, 4, 20)
    }
    assert frames == {2: ["communication"] * 3, 3: ["ink"] * 3, 4: [], 20: ["ink"] * 6}


def test_bytes_of_each_rank_stand_beside_it():
    assert {"42 B", "optimizer 36 B", "gradients 0 B", "rank 2"} <= set(labels(explorer()))
    assert labels(explorer(stage=0)).count("126 B") == 3


def test_the_legend_stays_where_it_is_at_every_step():
    scenes = [explorer(step, stage=stage).scene for stage, step in ((0, 1), (1, 10), (3, 12))]
    places = [[(item.x, item.y) for item in scene.labels() if item.text == "not used"] for scene in scenes]
    assert places[0] == places[1] == places[2] != []


def test_it_starts_where_asked():
    shown = ZeroExplorer(2, step=5)
    assert shown.stage.value == 2 and shown.step.value == 5 and shown.scene.title.startswith("stage 2 · step 5 of 12")
