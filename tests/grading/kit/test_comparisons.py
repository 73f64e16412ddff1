"""Numbers, lists and messages are compared, and the sentence says where they differ."""

from __future__ import annotations

import pytest

from helpers.grading.kit.comparisons import (
    expect_equal,
    expect_num_calls,
    expect_payload_bytes,
    simple_factor,
)
from helpers.grading.task import JudgedWorld, RunFailure
from helpers.grading.verdict import WorldResult, most_specific
from helpers.records import CommEvent, CommLog


def world_of(*payloads: int) -> JudgedWorld:
    """Two ranks that each all-reduce these bytes."""
    logs, common = [], {"op": "all_reduce", "group": "0", "group_ranks": (0, 1), "caller": "a.py:1", "dtype": "float64"}
    for rank in range(2):
        events = [
            CommEvent(rank=rank, sequence=i, payload_bytes=size, shape=(size // 8,), start=i, end=i + 0.5, **common)
            for i, size in enumerate(payloads)
        ]
        logs.append(CommLog(events=tuple(events)))
    return JudgedWorld(size=2, inputs=[{}, {}], outputs=[{}, {}], logs=logs, marks=[[], []])


def test_numbers_and_lists_have_types():
    assert expect_equal("it", [1, 2], [1, 2]).ok
    assert not expect_equal("it", 1, True).ok
    assert not expect_equal("it", 1, 1.0).ok
    assert expect_equal("it", [1, 2], [2, 1], mistakes={"swapped": [2, 1]}).mistakes == ("swapped",)


def test_lists_are_told_apart_where_they_part():
    assert expect_equal("it", [1, 2, 3], [1, 5, 3]).message.en == "it: number 2 is 5, expected 2"
    assert expect_equal("it", [1, 2, 3], [1, 2]).message.en == "it: there are 2, expected 3; 3 is missing"
    assert expect_equal("it", [1, 2], [1, 2, 2, 5]).message.en == "it: there are 4, expected 2; 2 is too much and more"
    assert expect_equal("it", [1, 2], [2, 1]).message.en.startswith("it: the items are right, but in another order")
    assert expect_equal("it", [1, 2, 3], None).message.en == "it is None, expected [1, 2, 3]"


def test_the_log_is_counted_on_every_rank():
    world = world_of(80, 16)
    assert all(finding.ok for finding in expect_num_calls(world, "all_reduce", 2))
    assert [f.mistakes for f in expect_num_calls(world, "all_reduce", 3, mistakes={"few": 2})] == [("few",)] * 2
    assert all(finding.ok for finding in expect_payload_bytes(world, 96, "all_reduce"))
    findings = list(expect_payload_bytes(world, [96, 48], mistakes={"whole": 96}))
    assert [finding.ok for finding in findings] == [True, False]
    assert findings[1].mistakes == ("whole",)
    assert findings[1].rank == 1


def test_the_mistake_that_explains_most_worlds_wins():
    def tried(size, *keys):
        return WorldResult(size=size, failure=RunFailure(kind="hang"), mistakes=keys)

    hints = dict.fromkeys(["a", "b", "c"])
    assert most_specific([tried(1, "b"), tried(2, "b", "a"), tried(3, "a", "b")], hints) == "b"
    assert most_specific([tried(2, "b", "a")], hints) == "a"
    assert most_specific([tried(2)], hints) is None


def test_what_a_rank_waits_in():
    failure = RunFailure(kind="hang", text="every rank waits\n  ranks 0, 1 wait in recv and send, cell line 3")
    assert failure.is_waiting_in("recv") and failure.is_waiting_in("send")
    assert not failure.is_waiting_in("all_reduce")


@pytest.mark.parametrize(
    ("got", "due", "factor"),
    [
        (2e9, 1e9, "2"),
        (0.1, 0.3, "1/3"),
        (2048, 2, ""),
        (2048, 16, "128"),
        (0.221, 0.226, ""),
        (-1.0, 2.0, ""),
        (3.0, 4.0, "3/4"),
    ],
)
def test_a_simple_factor_between_two_numbers_is_named(got, due, factor):
    assert simple_factor(due, got) == factor
    text = expect_equal("it", due, got).message.en
    assert text.endswith(f"it is {factor} times the right value" if factor else f"expected {due}")


def test_long_values_are_cut_where_they_differ():
    ones = [1] * 60
    text = expect_equal("it", [[*ones, 2]], [[*ones, 3]]).message.en
    assert text.count("…") == 2 and "1, 3]" in text and "1, 2]" in text
