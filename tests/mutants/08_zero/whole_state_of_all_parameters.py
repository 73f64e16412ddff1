"""Whoever builds the optimizer on the whole parameters, so its state is whole on every rank."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage1"
HINT = "whole_state"


class Zero1:
    def __init__(self, parameters, make_optimizer):
        self.parameters, self.n = parameters, dist.get_world_size()
        self.shard = torch.empty_like(self.parts(parameters)[0])
        self.optimizer = make_optimizer(parameters)

    def parts(self, tensors):
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return list(F.pad(flat, (0, -len(flat) % self.n)).chunk(self.n))

    @torch.no_grad()
    def step(self):
        part, parts = torch.empty_like(self.shard), [torch.empty_like(self.shard) for _ in range(self.n)]
        dist.reduce_scatter(part, self.parts([p.grad for p in self.parameters]))
        dist.all_gather(parts, part / self.n)
        flat = torch.cat(parts)
        for parameter in self.parameters:
            parameter.grad = flat[: parameter.numel()].view_as(parameter)
            flat = flat[parameter.numel() :]
        self.optimizer.step()
