"""The validator names the action that is missing, or at which a schedule would hang."""

import pytest

from helpers.schedules import Schedule, gpipe, one_f_one_b, validate, zb_h1
from tests.schedules.written import written


def without(schedule, text):
    rows = [[action for action in row if str(action) != text] for row in schedule.actions]
    return Schedule(schedule.name, schedule.num_stages, schedule.num_microbatches, tuple(map(tuple, rows)))


def test_it_hands_back_what_runs():
    schedule = one_f_one_b(3, 5)
    assert validate(schedule) is schedule


@pytest.mark.parametrize(
    "missing, said", [("1B2", r"never does 1B2 \(or 1I2\)"), ("2F0", "never does 2F0"), ("0B4", "never does 0B4")]
)
def test_a_missing_action_is_named(missing, said):
    with pytest.raises(ValueError, match=f"schedule one_f_one_b {said}"):
        validate(without(one_f_one_b(3, 5), missing))


def test_half_of_a_backward_is_not_enough():
    with pytest.raises(ValueError, match=r"never does 1B1 \(or 1W1\)"):
        validate(without(zb_h1(2, 2), "1W1"))


def test_twice_is_too_often():
    with pytest.raises(ValueError, match="does more than once 0F0"):
        validate(written("0F0,0F0,0B0\n"))


def test_a_stage_or_micro_batch_that_is_not_there_is_named():
    rows = (*gpipe(2, 1).actions[:1], (*gpipe(2, 1).actions[1], *gpipe(2, 2).actions[1][1:2]))
    with pytest.raises(ValueError, match="contains 1F1, but it has 2 stages and 1 micro-batches"):
        validate(Schedule("mine", 2, 1, rows))


def test_a_deadlock_is_named_with_what_each_rank_waits_for():
    with pytest.raises(ValueError) as caught:
        validate(written("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", name="mine"))
    assert str(caught.value) == (
        "schedule mine would hang: rank 0 at 0B0, which needs 1B0 or 1I0 of rank 1; "
        "rank 1 at 1F1, which needs 0F1 of rank 0"
    )


def test_an_action_before_what_it_needs_in_its_own_row_is_named():
    with pytest.raises(ValueError, match="rank 0 at 0B0, which needs 0F0 later in its own row"):
        validate(written("0B0,0F0\n"))


def test_a_pair_needs_what_both_parts_need():
    validate(written("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"))
    with pytest.raises(ValueError, match="would hang: rank 0 at .*OVERLAP_F_B, which needs 0F1"):
        validate(written("0F0,(0B1;0B0)OVERLAP_F_B,0F1\n"))
