"""Wraps torch's GradScaler, which the lab leaves to the learner."""

import torch

TASK = "04.scaler"
SAYS = "torch.amp.GradScaler"


class LossScaler:
    def __init__(self, scale, growth_interval):
        self.inner = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
        self.inner.scale(torch.ones(()))

    @property
    def scale(self):
        return self.inner.get_scale()

    def step(self, optimizer, parameters):
        optimizer.param_groups = [{"params": parameters}]
        self.inner.unscale_(optimizer)
        self.inner.step(optimizer)
        self.inner.update()
