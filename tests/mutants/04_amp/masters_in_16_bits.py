"""Whoever copies with clone() and forgets float()."""

import torch

TASK = "04.master"
HINT = "masters_in_16_bits"


class MasterWeights:
    def __init__(self, parameters, make_optimizer):
        self.parameters = list(parameters)
        self.masters = [p.detach().clone() for p in self.parameters]
        self.optimizer = make_optimizer(self.masters)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None if p.grad is None else p.grad
        self.optimizer.step()
        for p, master in zip(self.parameters, self.masters, strict=True):
            p.copy_(master)
