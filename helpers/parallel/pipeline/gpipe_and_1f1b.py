"""Provides pipeline parallelism on one screen: GPipe and 1F1B as two loops, with their sends and receives in view.

Rank r of P has stage r, which is some consecutive layers of the model. A batch is split into m micro-batches. Forward
receives an activation from rank r - 1 and sends one to rank r + 1, and backward sends gradients in the other direction.

    gpipe          all forwards, then all backwards; a rank keeps the activations of m micro-batches
    one_f_one_b    one forward and one backward in turn; rank r keeps the activations of at most P - r micro-batches

Both send the same messages, and in both a rank is idle for P - 1 of m + P - 1 slots if all stages take equally long.
stage.py runs every schedule from data and adds tied weights. Sources: Huang et al. 2019, "GPipe", and Narayanan et al.
2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 2.2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn


class MiniPipeline:
    """Trains this rank's stage. Both schedules add to `.grad`, and return the batch's loss on the last rank.

    loss_function(output, target): the mean over a micro-batch. activation_shape: the shape of every tensor that is sent
    between two stages, for one micro-batch. group: the ranks of the stages in their order.
    """

    def __init__(self, stage: nn.Module, loss_function: Callable, activation_shape: Sequence[int], group=None):
        self.stage, self.loss_function, self.group = stage, loss_function, group
        # self.buffer() makes an empty tensor, into which a message is received.
        self.buffer = partial(next(stage.parameters()).new_empty, activation_shape)
        self.rank, self.num_stages = dist.get_rank(group), dist.get_world_size(group)
        self.is_first, self.is_last = self.rank == 0, self.rank == self.num_stages - 1
        self.previous = None if self.is_first else self.rank - 1
        self.next = None if self.is_last else self.rank + 1

    def gpipe(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor | None:
        """Run all forwards, then all backwards. inputs, targets: one tensor per micro-batch, the same on every rank."""
        self.start(inputs, targets)
        for j in range(len(inputs)):
            x = self.exchange(self.previous, receives=True)
            y = self.forward(j, x)
            self.exchange(self.next, send=y)
        for _ in range(len(inputs)):
            dy = self.exchange(self.next, receives=True)
            dx = self.backward(dy)
            self.exchange(self.previous, send=dx)
        return self.loss

    def one_f_one_b(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor | None:
        """Run each backward as soon as its gradient can have arrived, so that its activations are freed early."""
        self.start(inputs, targets)
        num_warmup = min(self.num_stages - 1 - self.rank, len(inputs))
        num_steady = len(inputs) - num_warmup

        for j in range(num_warmup):  # warm-up: forwards, until the first gradient can arrive
            x = self.exchange(self.previous, receives=True)
            y = self.forward(j, x)
            self.exchange(self.next, send=y)

        if num_steady > 0:
            x = self.exchange(self.previous, receives=True)
        for k in range(num_steady):  # steady state: one forward, one backward
            y = self.forward(num_warmup + k, x)
            dy = self.exchange(self.next, send=y, receives=True)
            dx = self.backward(dy)
            x = self.exchange(self.previous, send=dx, receives=k < num_steady - 1)

        for _ in range(num_warmup):  # cool-down: the backwards that remain
            dy = self.exchange(self.next, receives=True)
            dx = self.backward(dy)
            self.exchange(self.previous, send=dx)
        return self.loss

    def start(self, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        self.inputs, self.targets, self.loss = inputs, targets, None
        self.in_flight: deque[tuple[Tensor, Tensor]] = deque()  # (input, output) of each micro-batch, until backward

    def forward(self, j: int, x: Tensor | None) -> Tensor:
        """Run micro-batch j through the stage. The first stage reads the batch, and the last one computes the loss."""
        x = self.inputs[j] if self.is_first else x.requires_grad_()  # backward then computes what is sent back
        y = self.stage(x)
        if self.is_last:
            y = self.loss_function(y, self.targets[j]) / len(self.targets)
            self.loss = y.detach() if self.loss is None else self.loss + y.detach()
        self.in_flight.append((x, y))
        return y.detach()

    def backward(self, dy: Tensor | None) -> Tensor | None:
        """Run backward of the oldest micro-batch in flight. The last stage has no dy, and the first one no dx."""
        x, y = self.in_flight.popleft()
        torch.autograd.backward(y, dy)
        return x.grad

    def exchange(self, peer: int | None, send: Tensor | None = None, receives: bool = False) -> Tensor | None:
        """Send a tensor to a neighbour, receive one from it, or both; return what was received.

        One batch starts both messages. Beyond the ends of the pipeline there is no peer, and nothing is sent.
        """
        if peer is None or (send is None and not receives):
            return None
        received, operations = self.buffer() if receives else None, []
        if send is not None:
            operations.append(dist.P2POp(dist.isend, send.contiguous(), group=self.group, group_peer=peer))
        if receives:
            operations.append(dist.P2POp(dist.irecv, received, group=self.group, group_peer=peer))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return received
