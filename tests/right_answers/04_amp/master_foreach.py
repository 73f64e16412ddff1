"""Pairs, torch._foreach, and new .data of the same dtype."""

import torch

TASK = "04.master"


class MasterWeights:
    def __init__(self, parameters, make_optimizer):
        self.pairs = [(p, torch.empty_like(p, dtype=torch.float32)) for p in parameters]
        with torch.no_grad():
            torch._foreach_copy_([m for _, m in self.pairs], [p.detach() for p, _ in self.pairs])
        self.optimizer = make_optimizer(m for _, m in self.pairs)

    def zero_grad(self):
        for p, m in self.pairs:
            p.grad = m.grad = None

    def step(self):
        for p, m in self.pairs:
            m.grad = p.grad.to(m.dtype) if p.grad is not None else None
        self.optimizer.step()
        for p, m in self.pairs:
            p.data = m.to(p.dtype)
