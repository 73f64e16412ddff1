"""Paired ratios: the median and interval of what was measured, and tables that a reader can repeat."""

from __future__ import annotations

import pytest

from benchmarks import paired
from benchmarks.paired import Ratio, bootstrap_interval, paired_ratio, ratio_of, write_table


def test_the_ratio_is_a_over_b_from_times_the_callables_return():
    ratio = paired_ratio(lambda: 0.3, lambda: 0.2, pairs=5, warmup=0)
    assert ratio == Ratio(*[pytest.approx(1.5)] * 3, pytest.approx(0.3), pytest.approx(0.2))


def test_pairs_interleave_and_take_turns_in_going_first():
    order = []
    paired_ratio(lambda: order.append("a"), lambda: order.append("b"), pairs=4, warmup=1)
    assert "".join(order) == "ab" + "abba" * 2


def test_a_call_that_returns_no_seconds_is_timed():
    assert paired_ratio(lambda: sum(range(200_000)), lambda: sum(range(2_000)), pairs=5).low > 2


def test_the_interval_covers_the_median_and_widens_with_the_spread():
    calm, wild = bootstrap_interval([1.0, 1.01, 0.99] * 5), bootstrap_interval([1.0, 1.6, 0.5] * 5)
    assert calm[0] <= 1.0 <= calm[1]
    assert calm[1] - calm[0] < wild[1] - wild[0]
    assert bootstrap_interval([1.0, 1.6, 0.5] * 5) == wild


def test_one_outlier_moves_neither_median_nor_interval_far():
    ratio = ratio_of([1.0] * 14 + [50.0], [1.0] * 15)
    assert (ratio.median, ratio.high) == (1.0, 1.0)


@pytest.mark.parametrize("changes, words", [({"pairs": 2}, "at least 3"), ({"warmup": -1}, "0 or more")])
def test_wrong_numbers_are_a_sentence(changes, words):
    with pytest.raises(ValueError, match=words):
        paired_ratio(lambda: 1.0, lambda: 1.0, **changes)


@pytest.mark.parametrize(
    "a, b, words", [([], [], "at least one"), ([1.0], [1.0, 2.0], "same number"), ([0.0], [1.0], "zero")]
)
def test_timings_that_make_no_ratio_are_a_sentence(a, b, words):
    with pytest.raises(ValueError, match=words):
        ratio_of(a, b)


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(paired, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_a_table_says_what_was_measured_where_and_how_to_repeat_it(results):
    rows = [{"what": "ring | 16 MB", "ratio": Ratio(1.0, 0.9, 1.12, 0.2, 0.2), "seconds": 0.01234}]
    path = write_table("ring", rows, "make bench ONLY=ring")
    text = path.read_text()
    assert path == results / "ring.md"
    assert "| what | ratio | seconds |" in text
    assert "| ring \\| 16 MB | 1.00 (0.90 to 1.12) | 0.0123 |" in text
    assert "`make bench ONLY=ring`" in text
    assert "Python 3" in text
    assert "interleaved pairs" in text
    assert "interleaved pairs" not in write_table("sizes", [{"MB": 1}], "make bench").read_text()


@pytest.mark.parametrize(
    "name, rows, words",
    [
        ("a", [], "no row"),
        ("a", [{"x": 1}, {"y": 1}], "make them equal"),
        ("../a", [{"x": 1}], "plain file name"),
        ("a.md", [{"x": 1}], "plain file name"),
    ],
)
def test_a_table_that_cannot_be_written_is_a_sentence(results, name, rows, words):
    with pytest.raises(ValueError, match=words):
        write_table(name, rows, "command")
