"""Calls the kernels of torch's GradScaler by their hidden names."""

import torch

TASK = "04.scaler"
SAYS = "_amp_foreach_non_finite_check_and_unscale_"


class LossScaler:
    def __init__(self, scale, growth_interval):
        self.interval = growth_interval
        self.scale, self.growth = torch.tensor(scale), torch.tensor(0, dtype=torch.int32)

    def step(self, optimizer, parameters):
        found = torch.zeros(1)
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, 1 / self.scale)
        if not found:
            optimizer.step()
        torch._amp_update_scale_(self.scale, self.growth, found, 2.0, 0.5, self.interval)
