"""The pictures of chapter 00 say what they show."""

from helpers.draw import means_scene, pairing_scene
from helpers.draw.chapters.start_here import BLAMED_RANKS
from helpers.ranks.board.errors import KINDS as ERRORS
from tests.draw.scenes import CALLS, SCENES, texts


def test_a_killed_rank_is_bold_and_the_others_wait_for_it():
    scene = SCENES["a killed rank"]
    bold = [label.text for label in scene.labels() if label.bold]
    assert bold[1:] == ["rank 1", "killed", "rank 1 died: killed by SIGKILL"] and texts(scene).count("waits") == 3
    assert "step 3" in texts(scene) and "os.kill" in scene.summary


def test_with_nccl_the_stack_names_a_later_line_than_the_one_that_hangs():
    where = {label.text: label.x for label in SCENES["a stack that is late"].labels()}
    assert where["the GPU waits here"] < where["the stack names this line"]


def test_of_a_hang_one_goes_on_and_three_wait():
    assert texts(SCENES["standing"]).count("waits") == 3 and texts(SCENES["standing"]).count("goes on") == 1


def test_both_means_are_named():
    scene = means_scene([[1.5] * 4, [1.5] * 4, [1.5] * 4, [9.9]])
    assert {"mean of all: 2.15", "mean of the means: 3.6", "mean 9.9"} <= set(texts(scene))


def test_calls_are_added_up_by_their_order():
    scene = pairing_scene([CALLS, CALLS[1:], CALLS, CALLS])
    assert {"sum: 50", "waits for rank 1", "no call"} <= set(texts(scene))
    assert "sum: 80" in texts(pairing_scene([CALLS] * 4))


def test_of_each_kind_of_error_the_rank_to_blame_is_bold():
    bold = [label.text for label in SCENES["kinds of errors"].labels() if label.bold and label.text.startswith("rank")]
    assert bold == ["rank 2", "rank 1", "rank 3", "rank 1"]
    assert {*BLAMED_RANKS} < {*ERRORS} and texts(SCENES["kinds of errors"]).count("101") == 1


def test_each_round_of_a_tree_doubles_those_that_have_the_tensor():
    rounds = [text for text in texts(SCENES["rounds of a tree"]) if text.endswith(" it")]
    assert rounds == ["1 has it", "2 have it", "4 have it", "8 have it"]
