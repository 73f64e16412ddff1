"""As Megatron does it: parameters are views of one buffer, and the optimizer works on a slice of it."""

import math

import torch
import torch.distributed as dist

TASK = "08.stage1"


class Zero1:
    def __init__(self, parameters, make_optimizer):
        self.parameters, self.n = parameters, dist.get_world_size()
        num_elements = sum(parameter.numel() for parameter in parameters)
        length = math.ceil(num_elements / self.n)
        self.buffer = torch.zeros(self.n * length, dtype=parameters[0].dtype)
        self.gradients = torch.zeros_like(self.buffer)
        place = 0
        for parameter in parameters:
            own = self.buffer[place : place + parameter.numel()].view_as(parameter)
            own.copy_(parameter.detach())
            parameter.data = own
            place += parameter.numel()
        self.shards = list(self.buffer.chunk(self.n))
        self.own = self.shards[dist.get_rank()]
        self.optimizer = make_optimizer([self.own])

    @torch.no_grad()
    def step(self):
        place = 0
        for parameter in self.parameters:
            self.gradients[place : place + parameter.numel()] = parameter.grad.flatten() / self.n
            place += parameter.numel()
        self.own.grad = torch.empty_like(self.own)
        dist.reduce_scatter(self.own.grad, list(self.gradients.chunk(self.n)))
        self.optimizer.step()
        dist.all_gather(self.shards, self.own.clone())
