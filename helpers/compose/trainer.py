"""Provides Trainer, which trains a plain model under any Plan by applying the strategies in the one order that works.

    tp          shards the matrices, while modules still have their names
    cp          lets attention exchange keys and values of the heads that tp has left on this rank
    ep          leaves each rank of dp x cp some of each layer's experts, to which tokens are sent
    recompute   wraps the blocks with sharded matrices: the second forward sends the same messages again
    pp          makes stages of the blocks as they are now
    dp, ZeRO    works on what is on this rank after tp and pp, which its replicas and its cp ranks share
    optimizer   is built on the parameters that ZeRO left on this rank
A step adds gradients up over micro-batches, over the stages that tie a weight (pp), and over dp x cp, because a cp rank
has the gradients of its tokens, as a replica has those of its rows; those of experts over edp. Only then are the
gradients complete, and the scaler checks them, the norm over all axes is computed, and the optimizer runs.
Other orders fail or give wrong results. DDP before tp would average shards of different columns. An optimizer built
before ZeRO would update weights that are no longer used. A norm taken before the mean over replicas would differ
between them.
The numbers 1 to 6 in the comments are the six steps whose order chapter 09 asks for: split the model (1), wrap it for
its replicas (2), make the optimizer (3), backward with the mean over dp (4), norm (5), clip and step (6). In the names
below, dp stands for dp x cp: the ranks that have the same weights.
After Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 3.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from helpers.compose import checkpoint, forward_backward, refused
from helpers.compose.axes import SEED_OF_SHARDS, Axes
from helpers.compose.context import SplitContext
from helpers.compose.experts import SplitExperts, plan_of_tensors
from helpers.compose.forward_backward import FullModel, PipelineModel, mean_over_ranks
from helpers.compose.state import TensorNames, full_state
from helpers.parallel.amp import GradScaler, autocast
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.shared.clip import clip_grad_norm_
from helpers.parallel.shared.recompute import recompute_blocks
from helpers.parallel.tensor_parallel import shard_tensor_parallel
from helpers.parallel.zero import Zero1, Zero2, Zero3
from helpers.specs import Plan


class Trainer:
    """Trains a model under a plan: `Trainer(model, plan, loss=token_loss, optimizer=torch.optim.AdamW, lr=1e-3)`.

    Make one on every rank, then call `step` on every rank. A Plan says how many ranks work on each axis (dp, tp, pp,
    cp, ep), with which ZeRO stage, schedule and recomputation. Layers of experts add their auxiliary losses to the loss
    that is differentiated, not to the one that is reported, and move their biases after each step.

    model: the same on every rank, built after the same seed. It is sharded in place, so use the trainer from then on.
    loss(output, target): returns a mean, over tokens (`token_loss`) or over rows.
    max_norm: clip by the norm of all gradients. dtype: torch.bfloat16 or torch.float16 for autocast, the latter with a
    loss scaler; weights keep their dtype. options: those of the optimizer, which must be elementwise under ZeRO.
    seed: of dropout. Without it every tensor rank draws full masks and keeps its shard of them, so that one replica
    equals one process; with it each rank draws its own masks.
    A plan's `precision` and `optimizer` are for predictions; the trainer uses `dtype` and `optimizer` instead.
    Raises ValueError for a plan that does not fit these ranks or this model, or that is not implemented.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        *,
        loss: Callable[[Tensor, Tensor], Tensor],
        optimizer: type[torch.optim.Optimizer],
        max_norm: float | None = None,
        dtype: torch.dtype | None = None,
        seed: int | None = None,
        **options,
    ):
        refused.check(model, plan)
        self.plan, self.mesh, self.max_norm, self.axes = plan, plan.mesh, max_norm, Axes(plan.mesh)
        self.steps, self.grad_norm, self.seed = 0, None, seed  # steps: how many were run; grad_norm: of the last one
        self.also: dict = {}  # the caller's own data, from the checkpoint that was loaded
        self.names = TensorNames(model)  # names and shapes of the plain model, for checkpoints
        dp, tp, pp, cp = (self.axes.group(*axes) for axes in (("dp", "cp"), ("tp",), ("pp",), ("cp",)))
        if plan.tp > 1:  # 1: cut the matrices
            shard_seed = None if seed is None else seed + SEED_OF_SHARDS
            matrices, sequence_parallel = plan_of_tensors(model), plan.sequence_parallel
            shard_tensor_parallel(model, tp, matrices, sequence_parallel=sequence_parallel, seed=shard_seed)
        self.experts = SplitExperts(model, plan, self.axes)
        self.names.record_splits(model)
        self.context = SplitContext(model, plan, cp)
        if plan.recompute != "none":
            recompute_blocks(model, mode=plan.recompute)
        # the scaler asks all ranks, because they must all take the same step or skip it
        self.scaler = GradScaler(enabled=dtype == torch.float16, group=self.axes.group("dp", "cp", "pp", "tp"))
        # two functions: the sum of a batch's losses, and their number
        self.loss = forward_backward.sum_loss(loss, model, plan, tp)
        device_type = next(model.parameters()).device.type
        region = partial(autocast, dtype, device_type=device_type) if dtype else nullcontext
        self._compute(model, optimizer, options, region, dp, pp)
        if seed is not None:
            self.axes.seed(seed)

    def _compute(self, model: nn.Module, optimizer, options: dict, region, dp, pp) -> None:
        """Set `runner` (computes gradients), `optimizer` and `local_model` (has this rank's weights).

        region: makes the autocast context of forward. dp, pp: this rank's process groups.
        """
        zero, has_stages = self.plan.zero, self.plan.pp > 1
        # DDP and Zero1 accumulate micro-batches under no_sync; ZeRO 2 and 3 send the gradients of each micro-batch.
        # lambdas, because the model and the optimizer are made below
        no_sync = {0: lambda: self.local_model.no_sync(), 1: lambda: self.optimizer.no_sync()}.get(zero, nullcontext)
        if has_stages:  # 1: cut the layers; PipelineModel also does what a wrapper for the replicas would do
            # around_row: the context in which the schedule's row runs; with ZeRO, the optimizer averages over dp later
            dp_group, around_row = (None, no_sync) if zero else (dp, nullcontext)
            stages = PipelineModel(model, self.plan, self._scaled, region, pp, dp_group, around_row)
            self.local_model = self.runner = stages
        else:
            wrap = {0: DistributedDataParallel, 3: Zero3}.get(zero)  # with 1 and 2 the optimizer averages gradients
            self.local_model = wrap(model, dp) if wrap else model  # 2: wrap for the replicas
            self.runner = FullModel(self.local_model, self._scaled, region, no_sync)
        if zero == 1:  # 3: make the optimizer
            self.optimizer = Zero1(self.local_model.named_parameters(), optimizer, dp, **options)
        elif zero == 2:
            self.optimizer = Zero2(self.local_model, optimizer, dp, **options)
        else:
            self.optimizer = optimizer(self.local_model.parameters(), **options)
        tied = self.runner.tied if has_stages else ()  # (parameter, the stages that share it)
        self.tied = {self.names.of[id(parameter)]: stages for parameter, stages in tied}

    def _scaled(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the sum of a micro-batch's losses, times the loss scale in float16."""
        return self.scaler.scale(self.loss.sum(output, target))

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Run one step on the global batch, which is the same on every rank; return its mean loss on every rank.

        inputs, targets: full rows, of which this rank takes its own; with cp, it takes its tokens of the rows of its
        replica. Targets of tokens are therefore shifted already (`shifted_labels` in parallel/context_parallel).
        Afterwards `grad_norm` is the norm before clipping, NaN or inf where the scaler skipped the step.
        Raises ValueError where dp x micro-batches do not divide the rows, where no target counts, and where the cp
        ranks cannot share the tokens of a row.
        """
        replica = self.axes.coordinates["dp"]
        share = self.context.split(forward_backward.split_batch(inputs, targets, self.plan, replica, self.loss))
        self.experts.weigh_balance(share.inputs[0].numel() / inputs.numel() * self.scaler.get_scale())
        self.optimizer.zero_grad()
        loss = self.runner.run(share.inputs, share.targets, share.total)  # 4: backward, and the mean over dp
        self.scaler.unscale_(self.optimizer)
        self.grad_norm = self._clip(math.inf if self.max_norm is None else self.max_norm)  # 5: one norm; 6: clip
        self.scaler.step(self.optimizer)  # 6: the step
        self.experts.update_biases(self.local_model)  # also where the scaler skipped the step: it counts choices alone
        # a report: the mean loss of the global batch, without the loss scale
        ranks, num_losses = self.axes.group("dp", "cp", "pp"), self.plan.dp * self.plan.cp
        loss = mean_over_ranks(loss, ranks, num_losses) / self.scaler.get_scale()
        self.scaler.update()
        self.steps += 1
        return loss

    def _clip(self, max_norm: float) -> Tensor:
        """Clip by one norm over all axes; each parameter says on which ranks it lies (shared/placement.py)."""
        if self.plan.zero in (1, 2):
            return self.optimizer.clip_grad_norm_(max_norm)
        if self.plan.zero == 3 or self.plan.pp > 1:
            return self.local_model.clip_grad_norm_(max_norm)
        return clip_grad_norm_(self.local_model.parameters(), max_norm)

    def full_state(self) -> dict[str, Tensor]:
        """Return the state dict of the plain model on every rank. Every rank must call it."""
        return full_state(self)

    def save(self, folder: str | os.PathLike, **options) -> None:
        """Write a checkpoint that any plan can load (checkpoint/). Every rank calls it, between two steps.

        options: those of checkpoint.save. A checkpoint.AsyncSaver saves while the next steps run.
        """
        checkpoint.save(self, folder, **options)

    @classmethod
    def load(cls, folder: str | os.PathLike, model: nn.Module, plan: Plan, **options) -> Trainer:
        """Make a trainer that continues from a checkpoint, whatever plan saved it. options: those of Trainer."""
        trainer = cls(model, plan, **options)
        checkpoint.load(trainer, folder)
        return trainer
