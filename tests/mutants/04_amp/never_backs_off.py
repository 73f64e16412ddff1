"""Whoever skips the step and leaves the scale."""

import torch

TASK = "04.scaler"
HINT = "never_backs_off"


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
            self.good_steps = 0
        else:
            optimizer.step()
            self.good_steps += 1
            if self.good_steps == self.growth_interval:
                self.scale *= 2
                self.good_steps = 0
