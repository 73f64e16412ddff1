"""Lab 12: a disk that loses what real ones lose, cases in which each mistake shows, and rules that leave no doubt."""

from __future__ import annotations

import operator

import pytest

from helpers.grading.fault_tolerance import membership, resuming, saving
from helpers.grading.fault_tolerance.saving import Disk
from tests.grading.known_mistakes import assert_told_apart, each, repeated, world_of

SEEDS = range(20)
RIGHT_AND_WRONG = {
    "12.resume": (resuming.next_samples(), resuming.WRONG_SAMPLES),
    "12.reshard": (resuming.read_part, resuming.WRONG_PARTS),
    "12.verdict": (membership.verdicts(), membership.WRONG_VERDICTS),
    "12.interval": (saving.best_interval, saving.WRONG_INTERVALS),
    "12.regroup": (membership.regrouping(), membership.WRONG_GROUPS),
}


@pytest.mark.parametrize("key", RIGHT_AND_WRONG)
@repeated("seed", SEEDS)
def test_each_mistake_gives_what_neither_the_right_way_nor_another_does(key, seed):
    right, wrong = RIGHT_AND_WRONG[key]
    cases = world_of(key, 1, seed).inputs[0]["cases"]
    answers = {name: [[one(*case) for case in cases] for one in several] for name, several in wrong.items()}
    assert_told_apart(each([right(*case) for case in cases], answers), operator.eq)


@repeated("seed", SEEDS)
def test_the_drawn_cases_hold_what_the_texts_speak_of(seed):
    drawn = {key: world_of(key, 1, seed).inputs[0]["cases"] for key in RIGHT_AND_WRONG}
    assert saving.best_interval(1, 6000, 10, 600, 15) == 24, "Young's own example"
    words = [word for case in drawn["12.verdict"] for word in membership.verdicts()(*case)]
    assert set(words) == {"alive", "late", "hung", "dead"}
    for nodes, node_mtbf, save, repair, step in drawn["12.interval"]:
        lost = {k: save / (k * step) + k * step / 2 / (node_mtbf / nodes + repair) for k in range(1, 5000)}
        assert min(lost, key=lost.get) == saving.best_interval(nodes, node_mtbf, save, repair, step), (
            "round is not the least"
        )
    groups = [membership.regrouping()(*case) for case in drawn["12.regroup"]]
    assert [None] * 3 in groups and any(group[1] for group in groups) and any(group[1] == [] for group in groups)
    in_a_row = [set(spares[:2]) <= set(dead) for _, spares, dead, *_ in drawn["12.regroup"] if len(spares) > 2]
    assert any(in_a_row), "no two dead spares in a row before a living one"
    ends = [
        (state["trained"], batch * steps, len(orders[0])) for state, orders, batch, _, _, steps in drawn["12.resume"]
    ]
    assert any((start + read - 1) // n >= start // n + 2 for start, read, n in ends), "nobody reads into a third epoch"
    for pieces, total, _, _ in drawn["12.reshard"]:
        assert sorted(i for _, start, stop in pieces for i in range(start, stop)) == list(range(total))


def left_by(disk: Disk) -> tuple[str | None, list[str | None]]:
    return disk.crashes[-1]["after_kill"], disk.crashes[-1]["after_power_cut"]


def test_a_kill_takes_what_is_not_flushed_and_a_power_cut_what_is_not_synced_bytes_and_names_alike():
    disk = Disk({"a": "old"}, "a")
    with disk.open("b") as file:
        file.write(b"new")
        disk.replace("b", "a")
        assert left_by(disk) == ("", ["old", ""])
        file.flush()
        assert left_by(disk) == ("new", ["old", ""])
        disk.fsync(file)
        assert left_by(disk) == ("new", ["old", "new"])
    disk.fsync_folder()
    assert left_by(disk) == ("new", ["new"])
    with pytest.raises(ValueError, match="fsync: the file 'b' is closed; call fsync before that"):
        disk.fsync(file)
    disk.remove("a")
    assert left_by(disk) == (None, ["new", None]) and disk.mistake == "renamed_too_early"


def test_an_old_checkpoint_that_is_moved_aside_is_missing_and_only_its_own_name_has_to_be_safe_when_others_are_told():
    disk = Disk({"a": "old", "b": "other"}, "a")
    disk.remove("b")
    disk.tell()
    assert not disk.mistake
    disk.replace("a", "aside")
    assert left_by(disk) == (None, ["old", None]) and disk.mistake == "old_removed_first"


@repeated("seed", SEEDS)
def test_whoever_is_silent_or_stands_still_exactly_as_long_as_a_limit_is_on_its_good_side(seed):
    said, beyond = ({name: set() for name in membership.LIMITS} for _ in range(2))
    for case in world_of("12.verdict", 1, seed).inputs[0]["cases"]:
        for told, word in zip(membership.statuses(*case[:4]), membership.verdicts()(*case), strict=True):
            waited = {"late": told[0], "dead": told[0], "hung": told[2]}
            for name, limit in membership.LIMITS.items():
                for words, seconds in ((said, limit), (beyond, limit + 1)):
                    if waited[name] == seconds:
                        words[name].add(word)
    assert said == {"late": {"alive"}, "dead": {"late"}, "hung": {"alive"}}
    assert beyond == {"late": {"late"}, "dead": {"dead"}, "hung": {"hung"}}, "nobody is a second beyond a limit"
