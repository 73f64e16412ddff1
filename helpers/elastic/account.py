"""Holds the result of an elastic job: its losses and generations, the steps done twice, and the time lost by deaths.

An elastic job goes on when a rank dies: all processes are started again from the last checkpoint. The steps after that
checkpoint are then done again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from helpers.learner.words import Words, book

words = book("elastic")  # the sentences of elastic.yaml, in every language


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The ranks that trained together between two rendezvous."""

    number: int
    ranks: int  # how many
    first_step: int  # of those that it finished
    last_step: int  # first_step - 1 where it finished none
    why: Words  # what ended it, as a sentence in every language
    # The same as a key: "done", "stopped" (the job was closed), "died", "raised", "hung", "silent" (a rank sent no
    # heartbeat) or "unmet" (not all ranks began a step in time).
    how: str
    lost: tuple[int, ...] = ()  # the ranks that died or were given up


@dataclass(frozen=True, kw_only=True, repr=False)
class Account:
    """The result of a job, also while it runs.

    history: (generation, step, loss, seconds since the start) in the order in which steps were finished.
    unsaved: step -> why its checkpoint failed. weights: of the full model in float64; empty while the job runs.
    """

    history: tuple[tuple[int, int, float, float], ...]
    generations: tuple[Generation, ...] = ()
    unsaved: Mapping[int, str] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def losses(self) -> dict[int, float]:
        """Step -> loss. Of a step that was done again, the last time counts."""
        return {step: loss for _, step, loss, _ in sorted(self.history, key=lambda row: row[:2])}

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def done_again(self) -> int:
        """The number of steps that were finished, lost when a rank died, and done once more."""
        return len(self.history) - self.steps

    @property
    def repairs(self) -> tuple[float, ...]:
        """For each death, the seconds from the last step before it to the first step of the next generation."""
        # Of several steps of a generation, a dict keeps the one that comes last.
        last = {number: seconds for number, _, _, seconds in self.history}
        first = {number: seconds for number, _, _, seconds in reversed(self.history)}
        numbers = sorted(last)
        return tuple(first[new] - last[old] for old, new in zip(numbers, numbers[1:], strict=False))  # neighbours

    def difference(self, other: Account) -> float:
        """The largest relative difference between the losses or the weights of two jobs.

        The bias of a key is compared in absolute terms, because its gradient is zero in theory (it adds the same to all
        scores of a softmax), so Adam magnifies only rounding errors. Raises ValueError where the two did not do the
        same steps, or one of them still runs.
        """
        if self.losses.keys() != other.losses.keys() or not (self.weights and other.weights):
            raise ValueError(words("difference", mine=self.steps, theirs=other.steps))
        losses = (abs(loss - other.losses[step]) / abs(loss) for step, loss in self.losses.items())
        norms = {name: 1.0 if name.endswith("key.bias") else weight.norm() for name, weight in self.weights.items()}
        weights = ((weight - other.weights[name]).norm() / norms[name] for name, weight in self.weights.items())
        return max(*losses, *map(float, weights))

    def __repr__(self) -> str:
        return f"Account(steps={self.steps}, done_again={self.done_again}, generations={len(self.generations)})"
