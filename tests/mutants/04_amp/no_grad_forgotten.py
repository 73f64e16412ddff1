"""Whoever writes into a parameter while autograd watches."""

TASK = "04.master"
HINT = "no_grad_forgotten"


class MasterWeights:
    def __init__(self, parameters, make_optimizer):
        self.parameters = list(parameters)
        self.masters = [p.detach().clone().float() for p in self.parameters]
        self.optimizer = make_optimizer(self.masters)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def step(self):
        for p, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None if p.grad is None else p.grad.float()
        self.optimizer.step()
        for p, master in zip(self.parameters, self.masters, strict=True):
            p.copy_(master)
