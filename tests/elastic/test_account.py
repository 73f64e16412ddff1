"""What an account says of a history that is known."""

from __future__ import annotations

import pytest
import torch

from helpers.elastic import Account

LOST = Account(
    history=((0, 1, 5.0, 1.0), (0, 2, 4.0, 2.0), (0, 3, 3.0, 3.0), (1, 3, 3.0, 5.0), (1, 4, 2.0, 5.5)),
    weights={"w": torch.ones(2)},
)
WHOLE = Account(history=tuple((0, step, 6.0 - step, 0.0) for step in range(1, 5)), weights={"w": torch.ones(2)})


def test_a_step_that_is_done_again_counts_once_and_its_time_is_lost():
    assert (LOST.steps, LOST.done_again, LOST.repairs, LOST.seconds_lost) == (4, 1, (2.0,), 2.5)
    assert (WHOLE.done_again, WHOLE.repairs, WHOLE.seconds_lost) == (0, (), 0.0)


def test_two_deaths_before_anything_new_is_done_are_one_loss():
    account = Account(
        history=((0, 1, 1.0, 1.0), (0, 2, 1.0, 2.0), (1, 1, 1.0, 4.0), (2, 1, 1.0, 7.0), (2, 2, 1.0, 8.0))
    )
    assert account.seconds_lost == 6.0 and account.repairs == (2.0, 3.0)


def test_the_difference_sees_losses_and_weights():
    assert LOST.difference(WHOLE) == 0.0
    other = Account(history=WHOLE.history, weights={"w": torch.tensor([1.0, 1.1])})
    assert LOST.difference(other) == pytest.approx(0.1 / 2**0.5)
    with pytest.raises(ValueError, match="cannot be compared"):
        LOST.difference(Account(history=WHOLE.history[:2]))
