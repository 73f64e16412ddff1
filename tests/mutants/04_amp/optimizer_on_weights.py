"""Whoever gives the optimizer the weights, as without masters."""

import torch

TASK = "04.master"
HINT = "optimizer_on_weights"


class MasterWeights:
    def __init__(self, parameters, make_optimizer):
        self.parameters = list(parameters)
        self.masters = [p.detach().clone().float() for p in self.parameters]
        self.optimizer = make_optimizer(self.parameters)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None if p.grad is None else p.grad.float()
        self.optimizer.step()
