"""Gathering is a Function of its own, and what the matmul saved is gathered again when asked for."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage3"


def gather(shard, shape):
    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, shard.detach())
    return torch.cat(parts)[: math.prod(shape)].view(shape)


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, shape):
        return gather(shard, shape)

    @staticmethod
    def backward(ctx, gradient):
        n = dist.get_world_size()
        line = F.pad(gradient.flatten(), (0, -gradient.numel() % n))
        own = line.new_empty(len(line) // n)
        dist.reduce_scatter(own, list(line.chunk(n)))
        return own / n, None


def sharded_linear(x, shard, shape):
    weight = Gather.apply(shard, shape)
    address = weight.untyped_storage().data_ptr()

    def pack(tensor):
        return None if tensor.untyped_storage().data_ptr() == address else tensor

    def unpack(tensor):
        return gather(shard, shape).T if tensor is None else tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return x @ weight.T
