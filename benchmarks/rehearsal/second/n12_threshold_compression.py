"""SGD that only exchanges gradients above a threshold and keeps the rest as a residual."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class ThresholdSGD(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05, threshold=2e-3):
        super().__init__(params, dict(lr=lr, threshold=threshold))

    @torch.no_grad()
    def step(self):
        world = dist.get_world_size()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "residual" not in state:
                    state["residual"] = torch.zeros_like(p)
                total = p.grad + state["residual"]
                big = total.abs() > group["threshold"]
                values = total[big]
                dist.all_reduce(values)
                update = torch.zeros_like(total)
                update[big] = values / world
                state["residual"] = torch.where(big, torch.zeros_like(total), total)
                p.add_(update, alpha=-group["lr"])


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
dev = torch.device("cuda", local_rank)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10)).to(dev)
opt = ThresholdSGD(model.parameters())
torch.manual_seed(20 + rank)
for step in range(5):
    x = torch.randn(16, 32, device=dev)
    y = x[:, :10].argmax(1)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
dist.destroy_process_group()
