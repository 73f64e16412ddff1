"""Whoever counts every step, good or not, and takes the remainder."""

import torch

TASK = "04.scaler"
HINT = "overflow_keeps_count"


class LossScaler:
    def __init__(self, scale, growth_interval):
        self.scale, self.growth_interval = scale, growth_interval
        self.num_steps = 0

    def step(self, optimizer, parameters):
        grads = [p.grad for p in parameters if p.grad is not None]
        for grad in grads:
            grad /= self.scale
        found = any(not torch.isfinite(grad).all() for grad in grads)
        self.num_steps += 1
        if found:
            self.scale /= 2
        else:
            optimizer.step()
            if self.num_steps % self.growth_interval == 0:
                self.scale *= 2
