"""Training by any plan: a model that knows nothing, a Plan, and the strategies in the one order that works.

    1 tp          matrices are cut while modules still have their names
    2 recompute   blocks, whose matrices are cut: a second run sends the same messages again
    3 pp          stages take blocks as they are now
    4 dp, ZeRO    what is on this rank after 1 and 3 is what its copies share; flat vectors are made of final weights
    5 optimizer   of what ZeRO left on this rank
and in a step: gradients over micro-batches, tied weights over stages (pp), the mean over copies (dp); then, of
gradients that are whole, the scaler's verdict and the norm over all axes; at last the optimizer.
Wrong orders fail or lie: DDP before tp averages parts of different columns, an optimizer before ZeRO steps on weights
that are no longer used, a norm before the mean over copies is each copy's own.
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

from helpers.compose import batch, checkpoint, refused
from helpers.compose.axes import SEED_OF_SHARDS, Axes
from helpers.compose.parts import Stages, Whole, mean_over_copies
from helpers.compose.state import Names, full_state
from helpers.parallel.amp import GradScaler, autocast
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.shared.clip import clip_grad_norm_
from helpers.parallel.shared.recompute import recompute_blocks
from helpers.parallel.tensor_parallel import shard_tensor_parallel
from helpers.parallel.zero import Zero1, Zero2, Zero3
from helpers.specs import Plan


class Trainer:
    """`Trainer(model, plan, loss=token_loss, optimizer=torch.optim.AdamW, lr=1e-3)` on every rank; then `step`.

    model: the same on every rank, built after the same seed; it is cut in place, so use the trainer from then on.
    loss(output, target): a mean; over tokens (`token_loss`) or over rows. max_norm: clip by the norm of all gradients.
    dtype: torch.bfloat16 or torch.float16 for autocast, the latter with a loss scaler; weights stay as they are.
    seed: of dropout. Without it every tensor rank draws whole masks and keeps its part, so that one copy equals one
    process; with it each draws its own. options: of the optimizer, which must be elementwise where ZeRO cuts.
    A plan's `precision` and `optimizer` are for predictions; here `dtype` and `optimizer` say it.
    Raises ValueError, as a sentence, for a plan that is not for these ranks, this model, or not written yet.
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
        self.steps, self.grad_norm, self.seed = 0, None, seed
        self.also: dict = {}  # what the caller stored with the checkpoint from which this goes on
        self.names = Names(model)
        dp, tp, pp = (self.axes.group(axis) for axis in ("dp", "tp", "pp"))
        if plan.tp > 1:  # 1: cut the matrices
            shards = None if seed is None else seed + SEED_OF_SHARDS
            shard_tensor_parallel(model, tp, sequence_parallel=plan.sequence_parallel, seed=shards)
        self.names.cut(model)
        if plan.recompute != "none":
            recompute_blocks(model, mode=plan.recompute)
        self.scaler = GradScaler(enabled=dtype == torch.float16, group=self.axes.group("dp", "pp", "tp"))
        self.loss = batch.sum_loss(loss, model, tp)
        kind = next(model.parameters()).device.type
        region = partial(autocast, dtype, device_type=kind) if dtype else nullcontext
        self._compute(model, optimizer, options, region, dp, pp)
        if seed is not None:
            self.axes.seed(seed)

    def _compute(self, model: nn.Module, optimizer, options: dict, region, dp, pp) -> None:
        """`part` computes, `optimizer` steps, `held` has this rank's weights."""
        zero, has_stages = self.plan.zero, self.plan.pp > 1
        quiet = {0: lambda: self.held.no_sync(), 1: lambda: self.optimizer.no_sync()}.get(zero, nullcontext)
        if has_stages:  # 1: cut the layers; Stages wraps them, too
            dp_group, row = (None, quiet) if zero else (dp, nullcontext)
            self.held = self.part = Stages(model, self.plan, self._scaled, region, pp, dp_group, row)
        else:
            wrap = {0: DistributedDataParallel, 3: Zero3}.get(zero)
            self.held = wrap(model, dp) if wrap else model  # 2: wrap for the copies
            self.part = Whole(self.held, self._scaled, region, quiet)
        own = {
            0: lambda: optimizer(self.held.parameters(), **options),
            1: lambda: Zero1(self.held.named_parameters(), optimizer, dp, **options),
            2: lambda: Zero2(self.held, optimizer, dp, **options),
            3: lambda: optimizer(self.held.parameters(), **options),
        }
        self.optimizer = own[zero]()  # 3: make the optimizer
        tied = self.part.tied if has_stages else ()
        self.tied = {self.names.of[id(parameter)]: stages for parameter, stages in tied}

    def _scaled(self, output: Tensor, target: Tensor) -> Tensor:
        return self.scaler.scale(self.loss.sum(output, target))

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One step on the global batch, rows first, the same on every rank; the batch's mean loss, on every rank.

        `grad_norm` is then the norm before clipping; NaN or inf where the scaler skipped the step.
        Raises ValueError where dp x micro-batches do not divide the rows, or no target counts.
        """
        share = batch.cut(inputs, targets, self.plan, self.axes.place["dp"], self.loss)
        self.optimizer.zero_grad()
        loss = self.part.run(share.inputs, share.targets, share.total)  # 4: backward, and the mean over dp
        self.scaler.unscale_(self.optimizer)
        self.grad_norm = self._clip(math.inf if self.max_norm is None else self.max_norm)  # 5: one norm; 6: clip
        self.scaler.step(self.optimizer)  # 6: the step
        loss = mean_over_copies(loss, self.axes.group("dp", "pp"), self.plan.dp) / self.scaler.get_scale()
        self.scaler.update()
        self.steps += 1
        return loss

    def _clip(self, max_norm: float) -> Tensor:
        """One norm over all axes: parameters say where they lie (shared/placement.py)."""
        if self.plan.zero in (1, 2):
            return self.optimizer.clip_grad_norm_(max_norm)
        if self.plan.zero == 3 or self.plan.pp > 1:
            return self.held.clip_grad_norm_(max_norm)
        return clip_grad_norm_(self.held.parameters(), max_norm)

    def full_state(self) -> dict[str, Tensor]:
        """The state dict of the model before it was cut, on every rank. Every rank must call it."""
        return full_state(self)

    def save(self, folder: str | os.PathLike, **how) -> None:
        """Write a checkpoint that any plan can load (checkpoint/). Every rank calls it, between two steps.

        how: as for checkpoint.save. A checkpoint.AsyncSaver does it while the next steps run.
        """
        checkpoint.save(self, folder, **how)

    @classmethod
    def load(cls, folder: str | os.PathLike, model: nn.Module, plan: Plan, **how) -> Trainer:
        """A trainer that goes on from a checkpoint, whatever plan it was saved under. how: as for Trainer."""
        trainer = cls(model, plan, **how)
        checkpoint.load(trainer, folder)
        return trainer
