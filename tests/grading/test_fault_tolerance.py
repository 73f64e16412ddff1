"""Lab 12: a disk that loses what real ones lose, cases that hold what the texts speak of, and exact limits."""

from __future__ import annotations

import pytest

from helpers.grading.fault_tolerance import membership, saving
from helpers.grading.fault_tolerance.saving import Disk
from tests.grading.known_mistakes import repeated, world_of

SEEDS = range(20)


@repeated("seed", SEEDS)
def test_the_drawn_cases_hold_what_the_texts_speak_of(seed):
    keys = ("12.resume", "12.reshard", "12.verdict", "12.interval", "12.regroup")
    drawn = {key: world_of(key, 1, seed).inputs[0]["cases"] for key in keys}
    assert saving.best_interval(1, 6000, 10, 600, 15) == 24, "Young's own example"
    words = [word for case in drawn["12.verdict"] for word in membership.verdicts(*case)]
    assert set(words) == {"alive", "late", "hung", "dead"}
    for nodes, node_mtbf, save, repair, step in drawn["12.interval"]:
        lost = {k: save / (k * step) + k * step / 2 / (node_mtbf / nodes + repair) for k in range(1, 5000)}
        assert min(lost, key=lost.get) == saving.best_interval(nodes, node_mtbf, save, repair, step), (
            "round is not the least"
        )
    groups = [membership.regroup(*case) for case in drawn["12.regroup"]]
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
        found = membership.statuses(*case[:4])
        smallest = min(step for _, step, _ in found)  # whoever is further waits for those, and does not hang
        for told, word in zip(found, membership.verdicts(*case), strict=True):
            waited = {"late": told[0], "dead": told[0], "hung": told[2]}
            for name, limit in case[-1].items():
                for words, seconds in ((said, limit), (beyond, limit + 1)):
                    if waited[name] == seconds and (name != "hung" or told[1] == smallest):
                        words[name].add(word)
    assert said == {"late": {"alive"}, "dead": {"late"}, "hung": {"alive"}}
    assert beyond == {"late": {"late"}, "dead": {"dead"}, "hung": {"hung"}}, "nobody is a second beyond a limit"
