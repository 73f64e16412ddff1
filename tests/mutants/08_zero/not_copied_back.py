"""Whoever binds names to new tensors: the model still has its old parameters."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

TASK = "08.stage1"
HINT = "not_copied_back"


class Zero1:
    def __init__(self, parameters, make_optimizer):
        self.parameters, self.n = parameters, dist.get_world_size()
        self.given = list(parameters)
        self.shard = self.parts(parameters)[dist.get_rank()].clone()
        self.optimizer = make_optimizer([self.shard])

    def parts(self, tensors):
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return list(F.pad(flat, (0, -len(flat) % self.n)).chunk(self.n))

    @torch.no_grad()
    def step(self):
        self.shard.grad = torch.empty_like(self.shard)
        dist.reduce_scatter(self.shard.grad, self.parts([p.grad for p in self.given]))
        self.shard.grad /= self.n
        self.optimizer.step()
        parts = [torch.empty_like(self.shard) for _ in range(self.n)]
        dist.all_gather(parts, self.shard)
        flat = torch.cat(parts)
        pieces = flat[: sum(p.numel() for p in self.parameters)].split([p.numel() for p in self.parameters])
        self.parameters = [
            torch.nn.Parameter(piece.view_as(p)) for p, piece in zip(self.parameters, pieces, strict=True)
        ]
