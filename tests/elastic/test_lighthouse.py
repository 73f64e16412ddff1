"""Who takes part, who is behind, and when all must meet anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.elastic.healing import ROWS, ReplicaSettings, rows_of
from helpers.elastic.lighthouse import Lighthouse, next_round


def test_whoever_has_fewer_steps_is_behind_and_healed_by_the_first_who_is_not():
    quorum = next_round({3: 8, 0: 7, 1: 8}, None)
    assert (quorum.members, quorum.step, quorum.behind, quorum.source) == ((0, 1, 3), 8, (0,), 1)


def test_connections_stay_only_while_all_members_are_the_same_and_had_the_sum():
    first = next_round({0: 4, 1: 4}, None)
    done = replace(first, done=(0, 1))
    assert next_round({0: 5, 1: 5}, done).group == first.group
    assert next_round({0: 5, 1: 5, 2: 0}, done).group == 1, "a newcomer"
    assert next_round({0: 5}, done).group == 1, "a death"
    failed = next_round({0: 5, 1: 4}, replace(first, done=(0,)))
    assert (failed.group, failed.behind, failed.source) == (1, (1,), 0), "one that did not get the sum has hung up"


@pytest.mark.parametrize("share", ["fewer", "all"])
def test_rows_are_left_out_or_shared_and_never_taken_twice(share):
    settings, quorum = ReplicaSettings(share=share), next_round({0: 1, 1: 1, 3: 1}, None)
    rows = [row for copy in quorum.members for row in rows_of(copy, quorum, settings).tolist()]
    expected = range(ROWS) if share == "all" else [row for row in range(ROWS) if row // 4 != 2]
    assert rows == list(expected)


def test_rounds_without_a_step_come_to_an_end():
    lighthouse = Lighthouse()
    with pytest.raises(RuntimeError, match="5 rounds in a row completed no step; .*no such shape"):
        for _ in range(6):  # the sixth finds five behind it
            lighthouse.store.set("0.0/request", '{"steps": 0, "report": null, "error": "no such shape"}')
            lighthouse.read_request(0, "0.0")
            lighthouse.answer({0: "0.0"})


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (dict(copies=0), "copies=0, .*: give 1 to 16 replicas"),
        (dict(steps=0), "steps=0"),
        (dict(limit=0.0), "limit=0"),
        (dict(share="half"), "share=half, .* a share of"),
        (dict(moment="dawn"), "moment=dawn"),
        (dict(kill={4: 1}), "replicas count from 0 to 3"),
        (dict(kill={1: 12}), "0 to 11"),
        (dict(kill={1: 4}, back={1: 4}), "a replica returns after it has died"),
        (dict(back={1: 4}), "a replica returns after it has died"),
        (dict(copies=2, kill={0: 4, 1: 5}), "after step 5 no replica is left"),
    ],
)
def test_what_makes_no_run_is_said(said, sentence):
    with pytest.raises(ValueError, match=sentence):
        ReplicaSettings(**said)


def test_all_may_die_if_one_has_come_back_before():
    ReplicaSettings(copies=2, kill={0: 2, 1: 5}, back={0: 4})
