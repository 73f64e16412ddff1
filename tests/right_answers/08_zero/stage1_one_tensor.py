"""The collectives on one tensor each, and gloo takes the average."""

import torch
import torch.distributed as dist

TASK = "08.stage1"


class Zero1:
    def __init__(self, parameters, make_optimizer):
        self.parameters = list(parameters)
        self.lengths = [parameter.numel() for parameter in self.parameters]
        self.n = dist.get_world_size()
        self.zeros = -sum(self.lengths) % self.n
        self.own = self.line(self.parameters).view(self.n, -1)[dist.get_rank()].clone().requires_grad_()
        self.optimizer = make_optimizer([self.own])

    def line(self, tensors):
        tensors = [tensor.detach().reshape(-1) for tensor in tensors]
        return torch.cat([*tensors, tensors[0].new_zeros(self.zeros)])

    def step(self):
        self.own.grad = torch.empty_like(self.own)
        gradients = self.line([parameter.grad for parameter in self.parameters])
        dist.reduce_scatter_tensor(self.own.grad, gradients, op=dist.ReduceOp.AVG)
        self.optimizer.step()
        whole = torch.empty(self.n * self.own.numel(), dtype=self.own.dtype)
        dist.all_gather_into_tensor(whole, self.own.detach())
        pieces = whole[: sum(self.lengths)].split(self.lengths)
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter.data.copy_(piece.view_as(parameter))
