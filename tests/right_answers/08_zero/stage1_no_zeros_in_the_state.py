"""The zeros travel, but the optimizer never sees them: the last rank's state is shorter."""

import torch
import torch.distributed as dist

TASK = "08.stage1"


class Zero1:
    def __init__(self, parameters, make_optimizer):
        self.parameters, self.n, self.rank = parameters, dist.get_world_size(), dist.get_rank()
        self.num_elements = sum(p.numel() for p in parameters)
        self.length = -(-self.num_elements // self.n)
        begin = self.rank * self.length
        self.own = self.line(parameters)[begin : min(begin + self.length, self.num_elements)].clone()
        self.optimizer = make_optimizer([self.own])

    def line(self, tensors):
        return torch.cat([tensor.detach().flatten() for tensor in tensors])

    def padded(self, line, length):
        return torch.cat([line, line.new_zeros(length - line.numel())])

    def step(self):
        gradients = self.padded(self.line([p.grad for p in self.parameters]), self.n * self.length)
        part = gradients.new_empty(self.length)
        dist.reduce_scatter(part, list(gradients.split(self.length)))
        self.own.grad = part[: len(self.own)] / self.n
        self.optimizer.step()
        parts = [torch.empty_like(part) for _ in range(self.n)]
        dist.all_gather(parts, self.padded(self.own, self.length))
        vector = torch.cat(parts)[: self.num_elements]
        torch.nn.utils.vector_to_parameters(vector, self.parameters)
