"""Provides ZeRO stage 3, which PyTorch calls FSDP, on one screen: parameters exist in full only while they are used.

Each rank keeps 1/N of a module's parameters, as one flat shard, and trains on its own part of the batch.

    forward     all-gathers the parameters, computes, and frees them
    backward    all-gathers them again, computes, frees them, and reduce-scatters the gradients
    optimizer   updates the shard; the gradient and the optimizer states are therefore sharded as well

Wrap each layer of a model, because one unit at a time is gathered; units are not nested. A rank sends (N-1)/N of the
parameters three times per step, while DDP's all-reduce sends (N-1)/N of the gradients twice. stage3.py adds prefetch,
mixed precision, offload and frozen parameters. After Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward
Training Trillion Parameter Models", section 5.3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

# torch 2.13 has new names for these two collectives on one flat tensor: (output, input)
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class MiniFSDP(nn.Module):
    """Runs `module` on N ranks and trains one parameter, `shard`, whose gradient is the mean over the ranks.

    All parameters of the module must be trainable and have one dtype, and it must return one tensor. Every rank calls
    the same units in the same order. Wrap first and make the optimizer then: `AdamW(model.parameters())`. It must be
    elementwise, because a shard may end inside a tensor. Whoever clips gradients adds the shards' squared norms over
    the ranks first.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.module, self.group, self.num_ranks = module, group, dist.get_world_size(group)
        parameters = dict(module.named_parameters())
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        flat = torch.cat([parameter.detach().flatten() for parameter in parameters.values()])
        flat = nn.functional.pad(flat, (0, -len(flat) % self.num_ranks))  # so that N equal shards fill it
        dist.broadcast(flat, group=group, group_src=0)  # all ranks start with the weights of rank 0
        self.shard = nn.Parameter(flat.chunk(self.num_ranks)[dist.get_rank(group)].clone())
        for parameter in parameters.values():
            parameter.requires_grad_(False).data = flat.new_empty(0)  # the module itself stores no weights any more

    def forward(self, *args: Tensor) -> Tensor:
        full = GatheredParameters(self.shard, self.group)
        flat = Unshard.apply(self.shard, full)
        output = functional_call(self.module, self.views(flat), args)
        full.free()  # autograd has saved views of this memory; it is filled again before backward reads them
        if output.requires_grad:
            output.register_hook(lambda _: full.gather())  # runs when backward reaches this unit
        return output

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the module's parameters by name, as views of the flat tensor; the padding is left out."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        pieces = flat[: sum(sizes)].split(sizes)
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def full_tensors(self, shard: Tensor) -> dict[str, Tensor]:
        """Return full tensors by name. shard: this rank's `shard`, its `grad`, or a state of the optimizer."""
        full = GatheredParameters(shard, self.group)
        full.gather()
        return {name: view.clone() for name, view in self.views(full.flat).items()}


class GatheredParameters:
    """One flat tensor, whose memory exists from `gather` to `free`. shard: this rank's part of it."""

    def __init__(self, shard: Tensor, group: dist.ProcessGroup | None):
        self.shard, self.group = shard.data, group
        self.flat = shard.new_empty(dist.get_world_size(group) * len(shard))
        self.num_bytes = self.flat.nbytes

    def gather(self) -> None:
        self.flat.untyped_storage().resize_(self.num_bytes)
        all_gather(self.flat, self.shard, group=self.group)

    def free(self) -> None:
        self.flat.untyped_storage().resize_(0)


class Unshard(torch.autograd.Function):
    """Forward all-gathers the shard to the flat parameters, and backward reduce-scatters their gradient."""

    @staticmethod
    def forward(ctx, shard: Tensor, full: GatheredParameters) -> Tensor:
        ctx.full = full
        full.gather()
        # `.data` is the same memory with a version counter of its own. Otherwise autograd would take the second gather
        # for a change of the weights that it has saved, and backward would raise.
        return full.flat.data

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.full.free()  # every use of the parameters in this unit has been differentiated
        mean = torch.empty_like(ctx.full.shard)
        reduce_scatter(mean, gradient / dist.get_world_size(ctx.full.group), group=ctx.full.group)
        return mean, None
