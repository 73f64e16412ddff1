"""Whoever asks for the average and divides as well."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage1"
HINT = "divided_twice"


class Zero1:
    def __init__(self, parameters, make_optimizer):
        self.parameters, self.n = parameters, dist.get_world_size()
        self.shard = self.parts(parameters)[dist.get_rank()].clone()
        self.optimizer = make_optimizer([self.shard])

    def parts(self, tensors):
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return list(F.pad(flat, (0, -len(flat) % self.n)).chunk(self.n))

    @torch.no_grad()
    def step(self):
        self.shard.grad = torch.empty_like(self.shard)
        dist.reduce_scatter(self.shard.grad, self.parts([p.grad for p in self.parameters]), dist.ReduceOp.AVG)
        self.shard.grad /= self.n
        self.optimizer.step()
        parts = [torch.empty_like(self.shard) for _ in range(self.n)]
        dist.all_gather(parts, self.shard)
        flat = torch.cat(parts)
        for parameter in self.parameters:
            parameter.copy_(flat[: parameter.numel()].view_as(parameter))
            flat = flat[parameter.numel() :]
