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


def test_a_step_that_is_done_again_counts_once():
    assert (LOST.steps, LOST.done_again, LOST.repairs) == (4, 1, (2.0,))
    assert (WHOLE.done_again, WHOLE.repairs) == (0, ())


def test_the_difference_sees_losses_and_weights():
    assert LOST.difference(WHOLE) == 0.0
    other = Account(history=WHOLE.history, weights={"w": torch.tensor([1.0, 1.1])})
    assert LOST.difference(other) == pytest.approx(0.1 / 2**0.5)
    with pytest.raises(ValueError, match="cannot be compared"):
        LOST.difference(Account(history=WHOLE.history[:2]))
