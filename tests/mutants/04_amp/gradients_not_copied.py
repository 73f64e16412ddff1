"""Whoever forgets that backward knows nothing of the masters."""

import torch

TASK = "04.master"
HINT = "gradients_not_copied"


class MasterWeights:
    def __init__(self, parameters, make_optimizer):
        self.parameters = list(parameters)
        self.masters = [p.detach().clone().float() for p in self.parameters]
        self.optimizer = make_optimizer(self.masters)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        for p, master in zip(self.parameters, self.masters, strict=True):
            p.copy_(master)
