"""Whoever makes fp32 copies for each step, and so rounds after each."""

import torch

TASK = "04.master"
HINT = "masters_made_anew"


class MasterWeights:
    def __init__(self, parameters, make_optimizer):
        self.parameters = list(parameters)
        self.masters = [p.detach().clone().float() for p in self.parameters]
        self.make_optimizer = make_optimizer

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.masters = [p.detach().float() for p in self.parameters]
        self.optimizer = self.make_optimizer(self.masters)
        for p, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None if p.grad is None else p.grad.float()
        self.optimizer.step()
        for p, master in zip(self.parameters, self.masters, strict=True):
            p.copy_(master)
