"""torch._foreach, a scale that is a tensor and changes in place, gradients checked before they are divided."""

import torch

TASK = "04.scaler"


class LossScaler:
    def __init__(self, scale, growth_interval):
        self.scale = torch.tensor(float(scale))
        self.interval, self.since = growth_interval, 0

    def step(self, optimizer, parameters):
        grads = [p.grad for p in parameters if p.grad is not None]
        largest = torch.stack(torch._foreach_norm(grads, float("inf"))).max()
        if largest.isinf() or largest.isnan():
            self.scale *= 0.5
            self.since = 0
            return
        torch._foreach_div_(grads, self.scale)
        optimizer.step()
        self.since += 1
        if self.since == self.interval:
            self.scale.mul_(2.0)
            self.since = 0
