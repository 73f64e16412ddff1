"""Trains one small model, in one process or under any strategy on ranks, and compares what comes out.

A `Training` says what is trained: model, global batches, loss, optimizer, steps. Its strategy says how: `OneProcess`,
or a class of a chapter that changes some of its methods, such as a rank of DDP. `run` returns losses, norms, weights
and gradients by name. On ranks every rank runs the same: `ranks.run(training.run)` returns the list of results.
`beside_one_process` compares every rank with one process; `check_predicted` and `same_on_every_rank` compare messages
and bytes. The files of helpers/chapters use it, and each defines the strategies of its chapter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from helpers.observe.equality import Tensors, assert_equal, state_of
from helpers.ranks import Ranks
from helpers.workloads import rank_slice, token_loss

# In theory this gradient is zero, because softmax removes what is the same for all keys. So it holds rounding noise
# only, which Adam magnifies, and a relative tolerance would fail: this is the absolute one, for `assert_equal`.
KEY_BIAS_ROUNDING = {"*key.bias*": 1e-9}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained, and under which strategy.

    model: builds the model after `torch.manual_seed(0)`, or with the rank as the seed where `seeds_by_rank` is True.
    batch: step -> inputs and targets of the global batch, the same on every rank. strategy: makes of model and training
    the object that trains; `OneProcess` if None. loss(outputs, targets): the loss. optimizer, options: its class, and
    its keyword arguments. max_norm: clip gradients to this norm. state: model -> the tensors to compare, by name, where
    the strategy does not collect them.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Tensor, Tensor]]
    strategy: Callable[[nn.Module, Training], OneProcess] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] = token_loss
    optimizer: type = AdamW
    options: Mapping[str, object] = field(default_factory=dict)
    steps: int = 6
    max_norm: float | None = None
    state: Callable[[nn.Module], Tensors] = state_of
    seeds_by_rank: bool = False

    def under(self, strategy: Callable[..., OneProcess], **options) -> Training:
        """The same training under another strategy, which gets these options behind model and training."""
        return replace(self, strategy=partial(strategy, **options))

    def build(self) -> OneProcess:
        """The model under its strategy, on this rank, before the first step."""
        torch.manual_seed(dist.get_rank() if self.seeds_by_rank and dist.is_initialized() else 0)
        return (self.strategy or OneProcess)(self.model(), self)

    def run(self) -> Tensors:
        """Train in this process. Under a strategy every rank calls it: `ranks.run(training.run)`."""
        return self.train(self.build())

    def train(self, built: OneProcess) -> Tensors:
        """Train what `build` returned.

        Returns "losses" of the global batches, "norms" before clipping, and its state, by name.
        """
        losses, norms = [], []
        for step in range(built.first_step, built.first_step + self.steps):
            # rows is (which part, of how many): the part of the batch that this process reads.
            inputs, targets = (rank_slice(tensor, *built.rows) for tensor in self.batch(step))
            loss, norm = built.step(inputs, targets)
            losses += [] if loss is None else [loss]
            norms += [] if norm is None else [norm]
        found = {"losses": built.mean_losses(torch.stack(losses))} if losses else {}
        if norms:
            found["norms"] = torch.stack(norms).double()  # so that their dtype is the same under each strategy
        return found | built.state()


class OneProcess:
    """Plain PyTorch in one process: the reference, and the base of the strategies.

    A strategy is built with the model and the training, and overrides the methods in which it differs. So a rank of
    several is an object of a subclass, in spite of the name.
    """

    first_step = 0  # a strategy that resumes from a checkpoint sets the number of steps already done
    replicas = None  # the group of the ranks that train on the other parts of a batch, None if there are none
    rows = (0, 1)  # (which part, of how many): the part of the batch that this process reads

    def __init__(self, model: nn.Module, training: Training, forward: Callable | None = None, optimizer=None):
        """forward: what is called with the inputs, if not the model. optimizer: if not the training's own."""
        self.model, self.training, self.loss = model, training, training.loss
        self.forward = model if forward is None else forward
        self.optimizer = optimizer or training.optimizer(model.parameters(), **training.options)

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """One step: the loss and, if gradients are clipped, their norm. A rank without a loss returns None."""
        self.optimizer.zero_grad()
        loss = self.forward_backward(inputs, targets)
        self.after_backward()
        norm = None if self.training.max_norm is None else self.clip(self.training.max_norm)
        self.optimizer.step()
        return loss, norm

    def forward_backward(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Forward and backward of this process's rows. Returns the loss, or None on a rank that has none."""
        loss = self.loss(self.forward(inputs), targets)
        loss.backward()
        return loss.detach()

    def after_backward(self) -> None:
        """What a strategy does with gradients that are not averaged yet."""

    def clip(self, max_norm: float) -> Tensor:
        """Clip the gradients to this norm. Returns the norm before."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)

    def mean_losses(self, losses: Tensor) -> Tensor:
        """The losses of the global batches, from those of this process."""
        if self.replicas is not None:
            dist.all_reduce(losses, op=dist.ReduceOp.AVG, group=self.replicas)
        return losses

    def state(self) -> Tensors:
        """The tensors that are compared, by the names that they have in the plain model."""
        return self.training.state(self.model)


class DataParallelRanks(OneProcess):
    """The base of strategies in which every rank trains on its own rows of the batch."""

    @property
    def rows(self) -> tuple[int, int]:
        return dist.get_rank(), dist.get_world_size()

    @property
    def replicas(self) -> dist.ProcessGroup:
        return dist.group.WORLD


class LossShareRanks(OneProcess):
    """The base of strategies in which every rank computes a share of the loss, and the shares add up to it.

    Each rank reads the full batch. A subclass adds up the gradients as well, in `after_backward`.
    """

    def mean_losses(self, losses: Tensor) -> Tensor:
        dist.all_reduce(losses)
        return losses


def beside_one_process(ranks: Ranks, training: Training, alone: Tensors | None = None) -> str:
    """The line of `assert_equal` for every rank of this training against one process. AssertionError if not equal.

    alone: what one process gives, if it has been trained already.
    """
    alone = replace(training, strategy=None).run() if alone is None else alone
    return assert_equal(alone, ranks.run(training.run), atol=KEY_BIAS_ROUNDING)


def check_predicted(sent: T, predicted: T, sender: str = "") -> T:
    """What was sent, if it is what was predicted; RuntimeError that shows both otherwise.

    sender: begins the message, such as "rank 0 ".
    """
    if sent != predicted:
        raise RuntimeError(f"{sender}sent {sent}, and {predicted} was predicted")
    return sent


def same_on_every_rank(results: Sequence[T], where: str = "") -> T:
    """The result that all ranks have in common. RuntimeError if two ranks measured different amounts.

    where: begins the message.
    """
    first, *others = results
    if any(other != first for other in others):
        raise RuntimeError(f"{where}the ranks hold different amounts, {first} and {others}")
    return first
