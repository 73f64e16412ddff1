"""Whoever only ever backs off."""

import torch

TASK = "04.scaler"
HINT = "never_grows"


class LossScaler:
    def __init__(self, scale, growth_interval):
        self.scale, self.growth_interval = scale, growth_interval
        self.good_steps = 0

    def step(self, optimizer, parameters):
        grads = [p.grad for p in parameters if p.grad is not None]
        for grad in grads:
            grad /= self.scale
        found = any(not torch.isfinite(grad).all() for grad in grads)
        if found:
            self.scale /= 2
            self.good_steps = 0
        else:
            optimizer.step()
