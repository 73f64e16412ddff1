"""Stage 3 of ZeRO on one screen: each rank stores a shard of a layer, which is gathered only while it computes.

Legend: N = ranks, n = elements of the layer's parameters, s = ceil(n / N); padding fills N s (flat_shards.py).
stage3.py does this for whole models, and also prefetches, accumulates, mixes precisions and offloads.
The layout (FlatShards) knows where each parameter lies in one flat vector of all parameters, and which range of the
vector, the shard, each rank stores.
After Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from helpers.parallel.shared.collectives import broadcast_tensors
from helpers.parallel.zero.flat_shards import FlatShards


class ShardedLayer(nn.Module):
    """Runs `layer` on N ranks, each with its own rows of the batch, and trains one parameter: this rank's `shard` (s,).

    Forward all-gathers N s elements. Backward all-gathers them again, then reduce-scatters the gradient, N s elements;
    `shard.grad` is the mean over the ranks. The optimizer must be elementwise, because a shard ends inside tensors.
    Every rank must run the same layers in the same order.
    """

    def __init__(self, layer: nn.Module, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.layer, parameters = layer, dict(layer.named_parameters())
        self.names, self.layout = list(parameters), FlatShards(parameters.values(), group)
        broadcast_tensors([*parameters.values(), *layer.buffers()], self.layout.group)  # all start equal to rank 0
        flat = self.layout.pack([*parameters.values()], self.layout.new_flat())  # (N s,)
        self.shard = nn.Parameter(self.layout.shard_of(flat).clone())  # (s,)
        for parameter in parameters.values():
            parameter.requires_grad_(False).data = flat.new_empty(0)  # the layer itself stores no weights any more
        self.full: Tensor | None = None  # (N s,) during backward of this layer

    def forward(self, *args: Tensor) -> Tensor:
        full = _Gather.apply(self.shard, self)  # (N s,), freed on return because nothing below refers to it
        weights, address = self.layout.views(full), full.untyped_storage().data_ptr()  # weights: views, no copies

        def pack(saved: Tensor) -> Tensor | tuple:
            """Return what autograd stores: a weight's position in the full vector, other tensors without a graph."""
            is_weight = saved.untyped_storage().data_ptr() == address
            return (saved.size(), saved.stride(), saved.storage_offset()) if is_weight else saved.detach()

        with saved_tensors_hooks(pack, self._unpack):  # backward calls _unpack with what `pack` returned
            return functional_call(self.layer, dict(zip(self.names, weights, strict=True)), args)

    def _unpack(self, packed: Tensor | tuple) -> Tensor:
        """Return what backward needs. The first weight that it asks for gathers the layer again."""
        if isinstance(packed, Tensor):
            return packed
        self.full = self.gather() if self.full is None else self.full
        return self.full.as_strided(*packed)

    @torch.no_grad()
    def gather(self) -> Tensor:
        """Return the shards of all ranks as one vector (N s,); `layout.views` splits it into the parameters."""
        flat = self.layout.new_flat()
        self.layout.all_gather(flat, self.shard)
        return flat


class _Gather(torch.autograd.Function):
    """Forward all-gathers the shard (s,) to the full vector (N s,); backward reduce-scatters its gradient."""

    @staticmethod
    def forward(ctx, shard: Tensor, layer: ShardedLayer) -> Tensor:
        ctx.layer, layer.full = layer, None  # layer.full is still there if the last backward raised
        return layer.gather()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.layer.full = None  # backward of the layer is over
        layout, mean = ctx.layer.layout, ctx.layer.layout.new_shard()
        layout.reduce_scatter(gradient / layout.world_size, mean)
        return mean, None
