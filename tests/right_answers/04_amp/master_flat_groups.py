"""Only what has a gradient is copied down; masters are parameters."""

import torch
from torch import nn

TASK = "04.master"


class MasterWeights:
    def __init__(self, parameters, make_optimizer):
        self.parameters = tuple(parameters)
        self.masters = [nn.Parameter(p.float().detach()) for p in self.parameters]
        self.optimizer = make_optimizer(self.masters)

    def zero_grad(self):
        for p in self.parameters:
            del p.grad

    def step(self):
        with torch.no_grad():
            moved = [(p, m) for p, m in zip(self.parameters, self.masters, strict=True) if p.grad is not None]
            for p, m in moved:
                m.grad = torch.zeros_like(m)
                m.grad += p.grad
            self.optimizer.step()
            for p, m in moved:
                p.copy_(m)
                m.grad = None
