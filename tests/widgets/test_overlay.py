"""In words how far measured bytes are from predicted ones."""

import pytest

from helpers.records import MemoryBreakdown
from helpers.widgets.overlay import apart, overlay_rows, overlay_words, rank_of

PREDICTED = MemoryBreakdown(parameters=400, gradients=400, optimizer=800, activations=1000)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (dict(parameters=400, gradients=400, optimizer=800, activations=1000), "equal to the byte"),
        (
            dict(parameters=400, gradients=400, optimizer=800, activations=500),
            "parameters, gradients and optimizer equal to the byte; activations 0.50 of the prediction "
            "(500 B of 1.00 kB); in all 0.81 of the prediction (2.10 kB of 2.60 kB)",
        ),
        (
            dict(parameters=400, optimizer=800, activations=1001, buffers=5),
            "parameters and optimizer equal to the byte; activations 1 B more than the prediction; buffers 5 B, none "
            "predicted; no gradients there (400 B predicted); in all 0.85 of the prediction (2.21 kB of 2.60 kB)",
        ),
        (
            dict(parameters=401, gradients=399, optimizer=800, activations=1000),
            "optimizer and activations equal to the byte; parameters 1 B more than the prediction; gradients 1 B less "
            "than the prediction; in all equal to the byte",
        ),
    ],
)
def test_each_kind_is_named_once(measured, words):
    assert apart(PREDICTED, MemoryBreakdown(**measured)) == words


def test_nothing_against_nothing():
    assert apart(MemoryBreakdown(), MemoryBreakdown()) == "nothing predicted, nothing measured"


def test_bars_that_part_alike_share_a_sentence():
    measured = {f"rank {rank}": MemoryBreakdown(parameters=4 + (rank == 2)) for rank in range(3)}
    predicted = dict.fromkeys(measured, MemoryBreakdown(parameters=4))
    assert overlay_words(predicted, measured) == (
        "Measured, rank 0 and rank 1: equal to the byte. Measured, rank 2: parameters 1.25 of the prediction "
        "(5 B of 4 B); in all 1.25 of the prediction (5 B of 4 B)."
    )


def test_the_table_has_a_dash_where_nothing_was_predicted():
    (row,) = overlay_rows(
        {"a": PREDICTED}, {"a": MemoryBreakdown(parameters=200, buffers=7)}, ["parameters", "buffers"]
    )
    assert list(row.values()) == ["measured / predicted: a", "0.50", "–", "0.08"]


def test_a_name_says_its_rank():
    assert [rank_of(name) for name in ("rank 3, at the peak", "after the step", "ranks 0-3")] == [3, None, None]
