"""Whoever takes make_optimizer for the optimizer, and updates by hand."""

import torch

TASK = "04.master"
HINT = "no_optimizer"


class MasterWeights:
    def __init__(self, parameters, make_optimizer):
        self.parameters = list(parameters)
        self.masters = [p.detach().clone().float() for p in self.parameters]
        self.lr = 2.0**-4

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None if p.grad is None else p.grad.float()
        for master in self.masters:
            if master.grad is not None:
                master -= self.lr * master.grad
        for p, master in zip(self.parameters, self.masters, strict=True):
            p.copy_(master)
