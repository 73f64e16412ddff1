"""Small methods, a flag that is a tensor, factors by name."""

import torch

TASK = "04.scaler"


class LossScaler:
    growth, backoff = 2.0, 0.5

    def __init__(self, scale, growth_interval):
        self.scale, self.growth_interval = scale, growth_interval
        self.good_steps = 0

    def unscale(self, gradients):
        found = torch.tensor(False)
        for g in gradients:
            g.mul_(1 / self.scale)
            found = found | ~torch.isfinite(g).all()
        return bool(found)

    def update(self, found):
        self.good_steps = 0 if found else self.good_steps + 1
        if found:
            self.scale *= self.backoff
        elif self.good_steps % self.growth_interval == 0:
            self.scale *= self.growth

    def step(self, optimizer, parameters):
        found = self.unscale([p.grad for p in parameters if p.grad is not None])
        if not found:
            optimizer.step()
        self.update(found)
