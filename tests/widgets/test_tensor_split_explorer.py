"""The explorer works without a front end: what is sent and what it takes move as they must."""

import pytest

from helpers.predict.by_hand.tensor_split import CUTS
from helpers.widgets import TensorSplitExplorer
from tests.widgets.explorers import turned


def explorer(**settings):
    return turned(TensorSplitExplorer(), **settings)


def communication(**settings):
    return sum(explorer(**settings).times["communication"].values())


def test_it_starts_with_the_mlp_and_its_one_sum():
    shown = explorer()
    assert shown.sentence == (
        "A is split by columns and B by rows, so ReLU has all that it needs and one sum at the end is enough. Sent in "
        "this pass: all-reduce of Z, 12 elements here, 67.1 MB and 155 µs at real size. Joined, the ranks' results are "
        "equal to one process."
    )


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("sequence", [False, True])
def test_every_pass_of_every_cut_is_equal_to_one_process(cut, sequence):
    shown = explorer(cut=cut, sequence=sequence, ranks=4)
    for _, look in shown.look.options:
        shown.look.value = look
        assert "results are equal to one process" in shown.sentence and shown.shown_pass.difference < 1e-14


def test_a_slow_link_takes_longer_than_the_products():
    """Why tensor parallelism stays inside a node."""
    fast, slow = explorer(link="NVLink 4").times, explorer(link="10 Gb/s").times
    assert sum(fast["communication"].values()) < 0.2 * sum(fast["products"].values())
    assert sum(slow["communication"].values()) > 10 * sum(slow["products"].values())


def test_more_ranks_compute_less_and_send_more():
    two, four = explorer(ranks=2).times, explorer(ranks=4).times
    assert sum(four["products"].values()) == pytest.approx(sum(two["products"].values()) / 2)
    assert communication(ranks=4) > communication(ranks=2)


def test_sequence_parallelism_gathers_once_more_for_the_weights():
    assert communication(sequence=True) == pytest.approx(1.25 * communication(), rel=0.02)
    shown = explorer(sequence=True, look="backward: weights")
    assert "all-gather of X" in shown.sentence
    assert "Sent in this pass: nothing." in explorer(look="backward: weights").sentence


def test_a_wider_layer_has_more_to_compute_a_byte():
    """Products grow with the square of hidden, messages with hidden."""
    small, large = explorer(hidden=1_024).times, explorer(hidden=16_384).times
    ratios = [sum(times["communication"].values()) / sum(times["products"].values()) for times in (small, large)]
    assert ratios[0] > 10 * ratios[1]


def test_words_have_no_gradient_so_an_embedding_has_two_passes():
    shown = explorer(look="backward: inputs")
    shown.cut.value = "embedding"
    assert [look for _, look in shown.look.options] == ["forward", "backward: weights"]
    assert shown.look.value == "forward"
    shown.look.value = "backward: weights"
    shown.cut.value = "head"
    assert len(shown.look.options) == 3 and shown.look.value == "backward: weights"


def test_the_table_has_a_row_for_each_operation():
    rows = explorer(cut="head", sequence=True, ranks=4).rows
    sent = ["all-gather of X", "all-reduce of m", "all-reduce of s and t", "reduce-scatter of dX", "all-gather of X"]
    assert [row["operation"] for row in rows] == sent
    assert rows[1] == {
        "pass": "forward",
        "operation": "all-reduce of m",
        "elements here": "4",
        "bytes at real size": "32.8 kB",
        "each rank sends (ring)": "49.2 kB",
        "time": "18.1 µs",
    }
