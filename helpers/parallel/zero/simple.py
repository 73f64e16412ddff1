"""Stage 3 of ZeRO on one screen: a layer of which each rank keeps a shard, and which is whole only while it computes.

Legend: N = ranks, n = elements of the layer's parameters, s = ceil(n / N); padding fills N s (flat_shards.py).
stage3.py does this for whole models, and gathers ahead, accumulates, mixes precisions, offloads.
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
    """`layer` on N ranks, each with rows of its own. It trains one parameter, `shard` (s,), elementwise.

    Forward: all-gather of N s elements. Backward: the same again, then reduce-scatter of the gradient, N s elements;
    `shard.grad` is the mean over the ranks. Every rank must run the same layers in the same order.
    """

    def __init__(self, layer: nn.Module, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.layer, parameters = layer, dict(layer.named_parameters())
        self.names, self.layout = list(parameters), FlatShards(parameters.values(), group)
        broadcast_tensors([*parameters.values(), *layer.buffers()], self.layout.group)  # all start equal to rank 0
        flat = self.layout.pack([*parameters.values()], self.layout.new_flat())  # (N s,)
        self.shard = nn.Parameter(self.layout.shard_of(flat).clone())  # (s,)
        for parameter in parameters.values():
            parameter.requires_grad_(False).data = flat.new_empty(0)  # the layer itself keeps nothing
        self.whole: Tensor | None = None  # (N s,) during backward of this layer

    def forward(self, *args: Tensor) -> Tensor:
        whole = _Gather.apply(self.shard, self)  # (N s,), freed on return: nothing below keeps it
        weights, address = self.layout.views(whole), whole.untyped_storage().data_ptr()

        def pack(saved: Tensor) -> Tensor | tuple:
            """What autograd keeps for backward: of a weight only where it lies in the whole vector."""
            is_weight = saved.untyped_storage().data_ptr() == address
            return (saved.size(), saved.stride(), saved.storage_offset()) if is_weight else saved.detach()

        with saved_tensors_hooks(pack, self._unpack):
            return functional_call(self.layer, dict(zip(self.names, weights, strict=True)), args)

    def _unpack(self, packed: Tensor | tuple) -> Tensor:
        """Backward needs what was kept: for the first of the weights, gather the layer again."""
        if isinstance(packed, Tensor):
            return packed
        self.whole = self.gather() if self.whole is None else self.whole
        return self.whole.as_strided(*packed)

    @torch.no_grad()
    def gather(self) -> Tensor:
        """(N s,): the shards of all ranks; `layout.views` cuts it into the parameters."""
        flat = self.layout.new_flat()
        self.layout.all_gather(flat, self.shard)
        return flat


class _Gather(torch.autograd.Function):
    """The shard (s,) to the whole vector (N s,); backward sends the other way round."""

    @staticmethod
    def forward(ctx, shard: Tensor, layer: ShardedLayer) -> Tensor:
        ctx.layer, layer.whole = layer, None  # if it is still there, the last backward raised
        return layer.gather()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.layer.whole = None  # backward of the layer is over
        layout, mean = ctx.layer.layout, ctx.layer.layout.new_shard()
        layout.reduce_scatter(gradient / layout.world_size, mean)
        return mean, None
