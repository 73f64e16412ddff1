"""What became of a job: its generations, its losses, what was done twice, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from helpers.learner.words import Words, book

say = book("elastic")


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The ranks that trained together, between two meetings.

    first_step, last_step: which it finished; last_step is first_step - 1 where it finished none. why: what ended it, in
    words. how: the same as a key, one of "done", "died", "raised", "hung", "silent" and "unmet". lost: whom it cost.
    """

    number: int
    ranks: int
    first_step: int
    last_step: int
    why: Words
    how: str
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class Account:
    """history: (generation, step, loss, seconds since the start) in the order in which steps were finished.

    repairs: for each death, the seconds from the last step before it to the first step of the next generation.
    unsaved: step to why its save failed. weights: of the whole model, float64; empty as long as the job runs.
    """

    history: tuple[tuple[int, int, float, float], ...]
    generations: tuple[Generation, ...] = ()
    unsaved: Mapping[int, str] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def losses(self) -> dict[int, float]:
        """Step to loss; of a step that was done again, the last time counts."""
        return {step: loss for _, step, loss, _ in sorted(self.history, key=lambda row: row[:2])}

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def done_again(self) -> int:
        """Steps that were finished, lost with the memory of the dead, and finished once more."""
        return len(self.history) - self.steps

    @property
    def repairs(self) -> tuple[float, ...]:
        last = {number: seconds for number, _, _, seconds in self.history}
        first = {number: seconds for number, _, _, seconds in reversed(self.history)}
        numbers = sorted(last)
        return tuple(first[new] - last[old] for old, new in zip(numbers, numbers[1:], strict=False))

    def difference(self, other: Account) -> float:
        """How far the losses and the weights are from another account's at most, in units of their own size.

        A key's bias counts in units of 1: its gradient is zero in theory, and Adam magnifies what rounding leaves.
        Raises ValueError where the two did not do the same steps, or one has not come to its end.
        """
        if self.losses.keys() != other.losses.keys() or not (self.weights and other.weights):
            raise ValueError(say("difference", mine=self.steps, theirs=other.steps))
        losses = (abs(loss - other.losses[step]) / abs(loss) for step, loss in self.losses.items())
        sizes = {name: 1.0 if name.endswith("key.bias") else one.norm() for name, one in self.weights.items()}
        weights = ((one - other.weights[name]).norm() / sizes[name] for name, one in self.weights.items())
        return max(*losses, *map(float, weights))

    def __repr__(self) -> str:
        return f"Account(steps={self.steps}, done_again={self.done_again}, generations={len(self.generations)})"
