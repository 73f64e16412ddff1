"""Provides PipelineStage: the pipeline core (core.py) with everything else that training asks for.

    partition   splits the model into stages (partition.py)
    schedule    says which action each rank runs, in which order (helpers.schedules): gpipe, one_f_one_b, zb_h1, …
    step        each rank runs its row of the schedule (core.py), and in addition
        F  (forward) may store the stage's input alone, and recompute the rest in backward
        I  (first half of backward) computes the gradients of inputs and defers those of large weights
        W  (second half of backward) computes the deferred gradients
    afterwards  it sums the gradients of tied weights, averages over replicas, and computes the norm

Legend: p = ranks, m = micro-batches, j = one of them, s = virtual stage. Each micro-batch sends one message of
activations and one of gradients over each boundary between ranks. After the step, the owners of a tied weight exchange
its gradients; with data parallelism, an all-reduce averages this rank's gradients over its replicas.

Splitting backward into I and W is what zero-bubble schedules need (Qi et al. 2023, section 2.1):

    with deferred_weights() as deferred:
        y = layer(x)                      # only F.linear and F.conv2d are replaced
        y.backward(gradient)              # I: gradients of x; those of large weights are deferred
    deferred.run()                        # W: the weights' gradients, added to .grad

Between I and W each layer stores its input and the gradient of its output: this is the memory that zero bubble costs.
Biases, norms and embeddings get their gradients in I, because those are cheap.

An Action has a kind (F, I, W, or B for a backward in one piece), a stage and a micro-batch. schedule.rank_of[s] is the
rank that runs virtual stage s; a rank has several stages, called chunks, under an interleaved schedule.
PipelineCore sets rank, chunks (str(s) -> this rank's module for stage s), last (the number of the last virtual stage),
and, while run_row works through a batch, inputs and targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from helpers.parallel.pipeline.core import PipelineCore, checked_schedule
from helpers.parallel.pipeline.partition import partition
from helpers.parallel.shared.clip import clip_grad_norm_
from helpers.parallel.shared.collectives import all_reduce_in_buckets
from helpers.parallel.shared.placement import Placement, by_replicas, place
from helpers.parallel.shared.recompute import checkpoint
from helpers.schedules import Action, Schedule
from helpers.schedules.actions import INPUT, WEIGHT

Loss = Callable[[Tensor, Tensor], Tensor]


class PipelineStage(PipelineCore):
    """This rank's stages of a model. Every rank builds the same model, and keeps the layers of its stages.

    model: what `partition` can split (a Sequential, a list of layers, the course's GPT, MLP and SmallResNet).
    loss(output, target): a scalar. Without `count` it is the mean over a micro-batch, and the step's loss is the mean
    over micro-batches. count(target): the number of targets that count. Then `loss` returns their sum, and the step's
    loss is the sum over all micro-batches (and all replicas of dp_group) divided by all targets that count, which is
    right where micro-batches have unequal numbers of tokens.
    costs: of each layer, so that stages take equally long. recompute: store only each stage's input for backward.
    dp_group: the ranks that have the same stages and get other data.
    Raises ValueError where the schedule would hang, does not fit the group, or has more stages than the model layers.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        group: dist.ProcessGroup | None,
        schedule: Schedule,
        *,
        loss: Loss,
        count: Callable[[Tensor], int | Tensor] | None = None,
        costs: Sequence[float] | None = None,
        recompute: bool = False,
        dp_group: dist.ProcessGroup | None = None,
    ):
        group = group if group is not None else dist.group.WORLD
        stages = partition(model, checked_schedule(schedule, group).num_stages, costs)
        super().__init__(stages, group, schedule, loss)
        self.dp_group, self.count, self.recompute = dp_group, count, recompute
        self.tied = _tied(stages, schedule)
        num_owners = {parameter: len(ranks) for parameter, ranks in self.tied}
        # record on which ranks each parameter lies, so that the gradient norm counts a tied one once
        for parameter in self.parameters():
            place(parameter, Placement.sharded("pp", self.group, copies=num_owners.get(parameter, 1)))
        self.deferred: dict[tuple[int, int], DeferredGradients] = {}  # (stage, micro-batch), from I to W

    def step(self, inputs: Tensor | None = None, targets: Tensor | None = None) -> Tensor | None:
        """Run one batch, split into micro-batches along dim 0, and add its gradients to `.grad`.

        inputs are used on the rank of the first stage, targets on that of the last; elsewhere they may be None.
        Returns the loss of the batch on the rank of the last stage, None on the others.
        Raises ValueError where the micro-batches do not divide the batch.
        """
        inputs = self._micro_batches(inputs, "inputs", stage=0)
        targets = self._micro_batches(targets, "targets", stage=self.last)
        return self.step_on(inputs, targets, self._total(targets))

    def step_on(self, inputs: Sequence[Tensor] | None, targets: Sequence[Tensor] | None, total: float) -> Tensor | None:
        """Run one batch that is given as micro-batches, each None on ranks that do not need it.

        total: the number by which the sum of losses is divided.
        """
        self.deferred.clear()  # a step that raised may have left some
        loss = self.run_row(inputs, targets, total)
        self.inputs = self.targets = None  # frees the batch
        self._reduce_gradients()
        return loss

    def forward(self, *args):
        raise RuntimeError("a PipelineStage holds only some of the layers: call step(inputs, targets) on every rank")

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale gradients so that the norm over all stages is at most max_norm; return the norm before.

        Every rank must call it. A tied weight counts once. It sends one scalar, and one more for each other axis on
        which the layers are sharded. The replicas of dp_group have equal gradients and count once.
        """
        return clip_grad_norm_(self.parameters(), max_norm, group=self.group)

    # -- what it adds to the core's actions ------------------------------------------------------------------------
    def compute(self, action: Action, received: Tensor | None) -> Tensor | None:
        """Do what the core does for an action, and for W compute the gradients that I has deferred."""
        if action.kind == WEIGHT:
            self.deferred.pop((action.stage, action.microbatch)).run()
        return super().compute(action, received)

    def compute_forward(self, action: Action, received: Tensor | None) -> Tensor:
        with self._deferring(action):
            return super().compute_forward(action, received)

    def compute_backward(self, action: Action, gradient: Tensor | None) -> Tensor | None:
        with self._deferring(action):  # because recomputation runs forward in here
            gradient = super().compute_backward(action, gradient)
        if action.kind != INPUT and self.schedule.splits_backward:  # a full B among I and W: nothing stays deferred
            self.deferred.pop((action.stage, action.microbatch)).run()
        return gradient

    def _deferring(self, action: Action) -> AbstractContextManager:
        """Return a context that defers gradients of large weights to W, where the schedule splits backward."""
        if not self.schedule.splits_backward:
            return nullcontext()
        return deferred_weights(self.deferred.setdefault((action.stage, action.microbatch), DeferredGradients()))

    def apply_stage(self, stage: int, x: Tensor) -> Tensor:
        """Compute a stage's output; with `recompute`, store only its input for backward."""
        chunk = self.chunks[str(stage)]
        y = checkpoint(chunk, x) if self.recompute else chunk(x)
        if not isinstance(y, Tensor):
            raise ValueError(
                f"stage {stage} returned a {type(y).__name__}, but a stage passes on one tensor: split the model "
                "elsewhere, or put what the next stage needs into one tensor"
            )
        return y

    # -- before and after the row ----------------------------------------------------------------------------------
    def _micro_batches(self, batch: Tensor | None, what: str, stage: int) -> Sequence[Tensor] | None:
        """Split a batch; None on ranks that do not have `stage`, which needs it."""
        m = self.schedule.num_microbatches
        if self.schedule.rank_of[stage] != self.rank:
            return None
        if batch is None or len(batch) % m or not len(batch):
            given = "None" if batch is None else f"a batch of {len(batch)}"
            raise ValueError(
                f"step got {given} as {what} on rank {self.rank}, which holds stage {stage} of {self.last + 1}: "
                f"give a batch that {m} micro-batches divide"
            )
        return batch.chunk(m)

    def _total(self, targets: Sequence[Tensor] | None) -> float:
        """Return the divisor of a micro-batch's loss, on the rank of the last stage."""
        if targets is None:
            return 1.0  # never used, because only the last stage computes losses
        if self.count is None:
            return float(len(targets))
        total = torch.tensor(float(sum(int(self.count(t)) for t in targets)), device=targets[0].device)
        if self.dp_group is not None:
            dist.all_reduce(total, group=self.dp_group)
        return float(total)

    @torch.no_grad()
    def _reduce_gradients(self) -> None:
        """Sum gradients of tied weights over their owners, then average over replicas.

        With `count` it sums over replicas, because each loss was already divided by the targets of all replicas.
        """
        for number, (parameter, owners) in enumerate(self.tied):
            if self.rank in owners:
                parameter.grad = self._sum_over(parameter, owners, number)
        if self.dp_group is not None:
            with_gradient = [parameter for parameter in self.parameters() if parameter.grad is not None]
            for replicas, parameters in by_replicas(with_gradient, self.dp_group).items():
                all_reduce_in_buckets([parameter.grad for parameter in parameters], replicas)
            gradients = [parameter.grad for parameter in with_gradient]
            if self.count is None and gradients:
                torch._foreach_div_(gradients, float(dist.get_world_size(self.dp_group)))

    def _sum_over(self, parameter: nn.Parameter, owners: Sequence[int], number: int) -> Tensor:
        """Return the sum of all owners' gradients, added in the order of ranks, so that all get the same bits.

        number: the index of the tied parameter, which tags its messages.
        """
        local = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        other_owners = [rank for rank in owners if rank != self.rank]
        gradients = {self.rank: local, **{rank: torch.empty_like(local) for rank in other_owners}}
        works = []
        for rank in other_owners:
            send = partial(dist.isend, local, group=self.group, group_dst=rank, tag=number)
            receive = partial(dist.irecv, gradients[rank], group=self.group, group_src=rank, tag=number)
            # the lower rank of each pair sends first: on NCCL two sends would wait for each other
            in_order = (send, receive) if self.rank < rank else (receive, send)
            works += [start() for start in in_order]
        for work in works:
            work.wait()
        return torch.stack([gradients[rank] for rank in owners]).sum(0)


def _tied(stages: Sequence[nn.Module], schedule: Schedule) -> list[tuple[nn.Parameter, list[int]]]:
    """List the parameters that stages of several ranks use, with these ranks in order; it is the same on every rank."""
    owners: dict[nn.Parameter, set[int]] = {}
    for stage, module in enumerate(stages):
        for parameter in module.parameters():
            owners.setdefault(parameter, set()).add(schedule.rank_of[stage])
    return [(parameter, sorted(ranks)) for parameter, ranks in owners.items() if len(ranks) > 1]


class DeferredGradients:
    """Gradients of weights that are still to be computed, as (weight, function that computes it)."""

    def __init__(self) -> None:
        self.work: list[tuple[Tensor, Callable[[], Tensor]]] = []

    def run(self) -> None:
        """Compute them all, add them to `.grad`, and free the tensors that were stored for them."""
        with torch.no_grad():
            for weight, gradient_of in self.work:
                gradient = gradient_of()
                weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        self.work.clear()


@contextmanager
def deferred_weights(deferred: DeferredGradients | None = None) -> Iterator[DeferredGradients]:
    """Defer the weight gradients of every F.linear and F.conv2d that runs in the `with`, even in a recomputation."""
    deferred = deferred or DeferredGradients()
    with _Deferring(deferred):
        yield deferred


class _Deferring(TorchFunctionMode):
    """Replaces F.linear and F.conv2d by versions that defer the weight's gradient."""

    def __init__(self, deferred: DeferredGradients):
        super().__init__()
        self.deferred = deferred

    def __torch_function__(self, function, types, args=(), kwargs=None):
        taken_over = _TAKEN_OVER.get(function)
        if taken_over is None or not torch.is_grad_enabled():
            return function(*args, **(kwargs or {}))
        return taken_over(self.deferred, *args, **(kwargs or {}))


def _linear(deferred: DeferredGradients, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = _Linear.apply(deferred, x, weight)
    return product if bias is None else product + bias


def _conv2d(
    deferred: DeferredGradients, x: Tensor, weight: Tensor, bias: Tensor | None = None, *args, **kwargs
) -> Tensor:
    output = _Conv2d.apply(deferred, args, kwargs, x, weight)
    return output if bias is None else output + bias[:, None, None]


class _Linear(torch.autograd.Function):
    """Maps x (…, in) by a weight (out, in) to (…, out)."""

    @staticmethod
    def forward(ctx, deferred: DeferredGradients, x: Tensor, weight: Tensor):
        ctx.deferred, ctx.weight, ctx.dtype = deferred, weight, x.dtype  # the parameter itself: its .grad is set later
        y = F.linear(x, weight)
        ctx.save_for_backward(x.to(y.dtype))  # in 16 bits under autocast, as the product was computed
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (x,) = ctx.saved_tensors

        def weight_gradient() -> Tensor:
            return (gradient.flatten(0, -2).T @ x.flatten(0, -2)).to(ctx.weight.dtype)  # (out, rows) times (rows, in)

        if ctx.needs_input_grad[2]:  # the weight
            ctx.deferred.work.append((ctx.weight, weight_gradient))
        if not ctx.needs_input_grad[1]:  # x
            return None, None, None
        return None, (gradient @ ctx.weight.to(gradient.dtype)).to(ctx.dtype), None


class _Conv2d(torch.autograd.Function):
    """Maps x (B, C_in, H, W) by a weight (C_out, C_in, k, k) to (B, C_out, H', W')."""

    @staticmethod
    def forward(ctx, deferred: DeferredGradients, args: tuple, kwargs: dict, x: Tensor, weight: Tensor):
        ctx.deferred, ctx.weight, ctx.dtype, ctx.options = deferred, weight, x.dtype, _options(*args, **kwargs)
        y = F.conv2d(x, weight, None, *args, **kwargs)
        ctx.save_for_backward(x.to(y.dtype))
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (x,), shape, options = ctx.saved_tensors, ctx.weight.shape, ctx.options

        def weight_gradient() -> Tensor:
            return torch.nn.grad.conv2d_weight(x, shape, gradient, **options).to(ctx.weight.dtype)

        if ctx.needs_input_grad[4]:  # the weight
            ctx.deferred.work.append((ctx.weight, weight_gradient))
        if not ctx.needs_input_grad[3]:  # x
            return None, None, None, None, None
        weight = ctx.weight.to(gradient.dtype)
        return None, None, None, torch.nn.grad.conv2d_input(x.shape, weight, gradient, **options).to(ctx.dtype), None


def _options(stride=1, padding=0, dilation=1, groups=1) -> dict:
    return dict(stride=stride, padding=padding, dilation=dilation, groups=groups)


# torch's function -> what runs in its place inside `deferred_weights`
_TAKEN_OVER = {F.linear: _linear, F.conv2d: _conv2d}
