"""Comparisons: what is equal, and which mistake a value tells of."""

from __future__ import annotations

import torch

from helpers.grading.kit.comparisons import (
    expect_equal,
    expect_ops,
    expect_payload,
    expect_tensor,
    expect_tensors,
    is_close,
)
from helpers.grading.task import JudgedWorld, RunFailure
from helpers.grading.verdict import WorldResult, most_specific
from helpers.learner.words import Words
from helpers.records import CommEvent, CommLog

HALF = torch.tensor([0.5, -1.5], dtype=torch.float64)


def world_of(*payloads: int) -> JudgedWorld:
    """Two ranks that each all-reduce these bytes."""
    logs = []
    for rank in range(2):
        events = [
            CommEvent(
                rank=rank,
                op="all_reduce",
                payload_bytes=size,
                group="0",
                group_ranks=(0, 1),
                sequence=i,
                caller="a.py:1",
                start=float(i),
                end=i + 0.5,
                dtype="float64",
                shape=(size // 8,),
            )
            for i, size in enumerate(payloads)
        ]
        logs.append(CommLog(events=tuple(events)))
    return JudgedWorld(size=2, inputs=[{}, {}], outputs=[{}, {}], logs=logs, marks=[[], []])


def test_rounding_is_equal_and_more_is_not():
    assert is_close(HALF, HALF + 1e-12)
    assert not is_close(HALF, HALF + 1e-9)
    assert is_close(HALF.float(), HALF.float() + 1e-6)
    assert not is_close(HALF.float(), HALF.float() + 1e-4)
    assert not is_close(HALF, HALF.float())
    assert not is_close(HALF, HALF * float("nan"))
    assert not is_close(torch.tensor([1]), torch.tensor([2]))
    assert not is_close(HALF, HALF.tolist())


def test_a_wrong_tensor_is_described():
    finding = expect_tensor("it", HALF, HALF * 3)
    assert not finding.ok
    assert finding.message.en == "it is 3.00 times the right value"
    assert expect_tensor("it", HALF, HALF * 2, before=HALF * 2).message.en.startswith("it is unchanged")


def test_a_mistake_is_known_by_its_value():
    mistakes = {"double": HALF * 2, "either": [HALF * 5, HALF * 3], "nothing": None, "right": HALF}
    assert expect_tensor("it", HALF, HALF * 2, mistakes=mistakes).mistakes == ("double",)
    assert expect_tensor("it", HALF, HALF * 3, mistakes=mistakes).mistakes == ("either",)
    assert expect_tensor("it", HALF, None, mistakes=mistakes).mistakes == ("nothing",)
    assert expect_tensor("it", HALF, HALF * 7, mistakes=mistakes).mistakes == ()
    assert expect_tensor("it", HALF, HALF, mistakes=mistakes).ok


def test_named_tensors_are_compared_one_by_one():
    what = Words(en="the weight {}", zh="权重 {} ")
    wrong = {"double": {"a": HALF * 2, "b": HALF * 2}}
    good, bad = expect_tensors(what, {"a": HALF, "b": HALF}, {"a": HALF, "b": HALF * 2}, mistakes=wrong)
    assert good.ok
    assert bad.message.en == "the weight b is 2.00 times the right value"
    assert bad.message.zh == "权重 b 是正确值的 2.00 倍"
    assert bad.mistakes == ("double",)
    assert [finding.ok for finding in expect_tensors(what, {"a": HALF}, None)] == [False]


def test_numbers_and_lists_have_types():
    assert expect_equal("it", [1, 2], [1, 2]).ok
    assert not expect_equal("it", 1, True).ok
    assert not expect_equal("it", 1, 1.0).ok
    assert expect_equal("it", [1, 2], [2, 1], mistakes={"swapped": [2, 1]}).mistakes == ("swapped",)


def test_lists_are_told_apart_where_they_part():
    assert expect_equal("it", [1, 2, 3], [1, 5, 3]).message.en == "it: number 2 is 5, expected 2"
    assert expect_equal("it", [1, 2, 3], [1, 2]).message.en == "it: there are 2, expected 3"
    assert expect_equal("it", [1, 2, 3], None).message.en == "it is None, expected [1, 2, 3]"


def test_the_log_is_counted_on_every_rank():
    world = world_of(80, 16)
    assert all(finding.ok for finding in expect_ops(world, "all_reduce", 2))
    assert [f.mistakes for f in expect_ops(world, "all_reduce", 3, mistakes={"few": 2})] == [("few",)] * 2
    assert all(finding.ok for finding in expect_payload(world, 96, "all_reduce"))
    findings = list(expect_payload(world, [96, 48], mistakes={"whole": 96}))
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
