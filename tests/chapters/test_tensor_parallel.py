"""Chapter 07's runs: each predicted message is compared, and only one order of splits needs one sum."""

import pytest
from torch import nn

from helpers.chapters import tensor_parallel
from helpers.chapters import tensor_parallel_cells as cells
from helpers.chapters.tensor_parallel_timing import LayerTimes, waiting_share
from helpers.observe.equality import assert_equal
from helpers.parallel.tensor_parallel import TensorParallelBlock
from helpers.parallel.tensor_parallel.conjugate import identity_all_reduce
from helpers.specs import GPUS, LINKS, PRESETS
from helpers.specs.hardware import COMPUTE_SHARE, reached


@pytest.mark.parametrize("a", ("columns", "rows"))
@pytest.mark.parametrize("b", ("columns", "rows"))
def test_one_order_of_four_needs_one_sum(a, b):
    assert tensor_parallel.is_one_sum_enough(a, b) == ((a, b) == ("columns", "rows"))


def test_another_message_than_the_predicted_one_is_an_error(ranks, monkeypatch):
    log = tensor_parallel.checked_messages(ranks[:2], batch=1)
    assert len(tensor_parallel.messages_of_first_block(log)) == 4
    assert all(event.end > event.start for event in log.events)  # they were sent, and not only predicted
    real = tensor_parallel.tensor_parallel_traffic
    monkeypatch.setattr(tensor_parallel, "tensor_parallel_traffic", lambda *args, batch: real(*args, batch=batch + 1))
    with pytest.raises(RuntimeError, match="was predicted"):
        tensor_parallel.checked_messages(ranks[:2], batch=1)


def test_dtensor_is_equal_to_one_process_and_all_reduces_six_times_a_layer_unless_the_plan_shares_the_input(ranks):
    verdict, size, larger, per_layer = tensor_parallel.compare_with_dtensor(ranks)
    assert verdict.startswith("equal: 36 tensors x 4 ranks") and size < larger and per_layer == 6


def test_equal_seeds_draw_replicas(ranks):
    first, second = tensor_parallel.draw_weight(ranks[:2], lambda: 7).chunk(2)
    assert first.equal(second)


def test_a_column_parallel_backward_that_adds_nothing_up_is_told_apart(ranks):
    def column_parallel(x, weight):
        return identity_all_reduce(x, None) @ weight.T

    assert "equal: 2 tensors x 2 ranks" in cells.check_column_parallel(ranks[:2], column_parallel)
    with pytest.raises(AssertionError, match="dX"):
        cells.check_column_parallel(ranks[:2], lambda x, weight: x @ weight.T)


def test_our_blocks_train_like_one_process(ranks):
    def sharded():
        return nn.Sequential(*map(TensorParallelBlock, cells.two_blocks()))

    assert_equal(cells.train_blocks(cells.two_blocks), ranks[:2].run(cells.train_blocks, sharded))


def test_equal_blocks_of_a_fused_matrix_give_queries_for_keys():
    assert cells.keys_of_equal_blocks()[1] == "rows of Q"


def test_thin_products_reach_a_smaller_share_of_the_peak():
    table = [row.split() for row in cells.products_table().splitlines()[1:]]
    assert table == [["1", "28,672", "68", "%", "67", "%"], ["8", "3,584", "65", "%", "60", "%"],
                     ["64", "448", "50", "%", "47", "%"]]  # fmt: skip


def test_the_switch_leaves_more_than_half_of_the_step_waiting_on_64_ranks():
    shares = {}
    for n in (8, 64):
        layer = LayerTimes.of(PRESETS["llama3-70b"], GPUS["GB200"], LINKS["NVLink 5"], n)
        shares[n] = round(100 * cells.share_with_switch(layer, "NVLink 5"))
    assert shares == {8: 14, 64: 56}


@pytest.mark.parametrize(
    ("link", "compute_share", "waits"),
    [(LINKS["NVLink 4"], 0.4, 13), (reached("NVLink 4"), 0.4, 15), (reached("NVLink 4"), 0.6, 21)],
    ids=["line rate", "as reached", "as reached, faster products"],
)
def test_the_shares_that_the_chapter_names_are_the_formulas(link, compute_share, waits):
    layer = LayerTimes.of(PRESETS["llama3-70b"], GPUS["H100"], link, 8)
    busy = layer.busy * COMPUTE_SHARE / compute_share
    assert round(100 * waiting_share(busy + 4 * layer.send, busy)) == waits


def test_the_switch_of_eight_h100_leaves_the_share_that_the_chapter_names():
    layer = LayerTimes.of(PRESETS["llama3-70b"], GPUS["H100"], LINKS["NVLink 4"], 8)
    assert round(100 * cells.share_with_switch(layer, "NVLink 4")) == 11
