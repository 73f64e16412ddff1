"""Whoever skips a parameter without a gradient, and leaves the last one in its master."""

import torch

TASK = "04.master"
HINT = "stale_gradient"


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
        for p, master in zip(self.parameters, self.masters, strict=True):
            if p.grad is not None:
                master.grad = p.grad.float()
        self.optimizer.step()
        for p, master in zip(self.parameters, self.masters, strict=True):
            p.copy_(master)
