"""Looks at one sum: inf and NaN survive any addition. Counts down, new gradients instead of in place."""

import math

TASK = "04.scaler"


class LossScaler:
    def __init__(self, scale, growth_interval):
        self.scale, self.growth_interval = scale, growth_interval
        self.good_steps = 0

    def step(self, optimizer, parameters):
        total = 0.0
        for p in parameters:
            if p.grad is not None:
                p.grad = p.grad / self.scale
                total += p.grad.abs().sum().item()
        if not math.isfinite(total):
            self.good_steps = 0
            self.scale = self.scale / 2
            return False
        optimizer.step()
        self.good_steps += 1
        if self.good_steps >= self.growth_interval:
            self.good_steps -= self.growth_interval
            self.scale = self.scale * 2
        return True
