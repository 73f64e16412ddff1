"""The pictures of chapter 06: two ranks that wait in a send, splits into stages, and a matrix that two ranks share."""

from types import SimpleNamespace

from helpers.draw import Line
from helpers.draw.chapters.pipeline import blocking_sends_scene, stage_splits_scene, tied_weights_scene


def test_both_ranks_wait_in_the_second_call():
    waiting = [label.text for label in blocking_sends_scene().labels() if label.text.endswith("waits")]
    assert waiting == ["send activation 1 · waits", "send gradient 0 · waits"]
    arrows = [item for item in blocking_sends_scene().items if isinstance(item, Line) and item.arrow]
    assert [arrow.dashed for arrow in arrows] == [False, True, True]


def test_the_slowest_stage_of_each_cut_is_marked():
    scene = stage_splits_scene([1, 1, 1, 3], {"even": [2, 2], "best": [3, 1]}, title="cuts")
    assert scene.summary == "even: 2, 4. best: 3, 3."
    assert [label.text for label in scene.labels() if label.bold and "=" in label.text] == ["= 4", "= 3", "= 3"]


def test_a_tied_matrix_has_its_losses_above_and_its_copies_below():
    runs = {"forgotten": SimpleNamespace(losses=[4.0, 3.0], apart=[0.0, 0.1, 0.2])}
    assert tied_weights_scene(runs).summary == (
        "Loss: forgotten: from 4 (0) to 3 (1). "
        "Largest difference between the two replicas: forgotten: from 0 (0) to 0.2 (2)."
    )
