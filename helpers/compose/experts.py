"""Provides SplitExperts: the experts of a model, split over the ep ranks of any plan, with their loss and their biases.

It prepares a model for the Trainer, as ExpertParallel (parallel/experts) does for a plan without other axes:

    experts     each ep rank has E / ep experts of every layer, and tokens go to them by all-to-all. The ep ranks are
                some of dp x cp, so they have other tokens already, and the backward of the all-to-all adds up their
                gradients. What is left is the sum over edp, the ranks with the same experts, and the division by
                dp x cp, as for all other gradients. DDP, PipelineStage and ZeRO ask each parameter which ranks these
                are (shared/placement.py).
    tp          experts and routers are replicated: tp ranks have the same tokens, and compute the same
    balance     the auxiliary loss is that of the global micro-batch: choices are counted over dp x cp. A layer adds its
                gradient in backward, so that a pipeline needs no message for it, as in Megatron-LM
    biases      move once per step, by the choices of all its micro-batches
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from helpers.compose.axes import Axes
from helpers.parallel.experts import ExpertParallel, MixtureOfExperts, expert_layers
from helpers.parallel.shared.placement import Placement, place, set_replicas
from helpers.parallel.tensor_parallel import GPT_PLAN
from helpers.parallel.tensor_parallel.splits import even_split
from helpers.specs import Plan


def plan_of_tensors(model: nn.Module) -> dict[str, str] | None:
    """Return which modules of a GPT tp shards if its feed-forwards are experts; None: what tp shards by default."""
    if not expert_layers(model):
        return None
    return {name: word for name, word in GPT_PLAN.items() if ".feed_forward." not in name}


class SplitExperts:
    """Splits the experts of a model over the ep ranks in order. Without a layer of experts it does nothing.

    model: its other parameters are already sharded by tp; it is changed in place. With ep=1 every rank has all experts.
    """

    def __init__(self, model: nn.Module, plan: Plan, axes: Axes):
        self.num_replicas, self.weight = plan.dp * plan.cp, 0.0
        if not expert_layers(model):
            return
        group, replicas = axes.group("ep"), axes.group("edp")
        ExpertParallel(model, group, data_group=axes.group("dp", "cp"))
        for layer in expert_layers(model):
            if layer.config.alpha:
                layer.register_forward_hook(self._with_balance)
            if plan.tp > 1:
                for parameter in layer.experts.parameters():
                    place(parameter, Placement.replicated("tp", axes.group("tp")))
        if plan.ep == 1:
            return
        for parameter in model.parameters():
            place(parameter, Placement.replicated("ep", group))
        for layer in expert_layers(model):
            split = replace(even_split(layer.config.num_experts, plan.ep), axis="ep")
            layer.experts.splits = dict.fromkeys(["up", "down"], split)
            for parameter in layer.experts.parameters():
                place(parameter, Placement.sharded("ep", group))
                set_replicas(parameter, replicas)

    def weigh_balance(self, share: float) -> None:
        """Set what the auxiliary losses of this step are multiplied by.

        share: a micro-batch's tokens on this rank, of all tokens of the step; times the loss scale. The mean over
        dp x cp, which all gradients take, is then the mean over micro-batches of their auxiliary losses.
        """
        self.weight = share * self.num_replicas

    def update_biases(self, local_model: nn.Module) -> None:
        """Move the biases of the layers on this rank, by the choices since the last call, and count afresh."""
        for layer in expert_layers(local_model):
            layer.update_bias()

    def _with_balance(self, layer: MixtureOfExperts, _: tuple[Tensor], output: Tensor) -> Tensor:
        return AddedLoss.apply(output, layer.balance_loss, self.weight)


class AddedLoss(torch.autograd.Function):
    """Returns `output` as it is, and lets backward treat weight x loss as a part of the model's loss."""

    @staticmethod
    def forward(ctx, output: Tensor, loss: Tensor, weight: float) -> Tensor:
        ctx.weight, ctx.loss = weight, loss.detach()
        return output.view_as(output)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, torch.full_like(ctx.loss, ctx.weight), None
