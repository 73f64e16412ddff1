import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FFN(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(x)))


class Stack(nn.Module):
    def __init__(self, dim=16, hidden=32, depth=2):
        super().__init__()
        self.ffns = nn.ModuleList(FFN(dim, hidden) for _ in range(depth))

    def forward(self, x):
        for ffn in self.ffns:
            x = ffn(x)
        return x


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"], mesh["tp"]

    torch.manual_seed(0)
    model = Stack().cuda()
    for ffn in model.ffns:
        parallelize_module(ffn, tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(ffn, mesh=dp)
    fully_shard(model, mesh=dp)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    # tensor parallel partners see the same rows, data parallel ones do not
    gen = torch.Generator().manual_seed(1000 + dp.get_local_rank())
    for step in range(8):
        x = torch.randn(16, 16, generator=gen).cuda()
        loss = nn.functional.mse_loss(model(x), -x)
        loss.backward()
        opt.step()
        opt.zero_grad()
        shown = loss.detach().clone()
        dist.all_reduce(shown, group=dp.get_group())
        if dist.get_rank() == 0:
            print(f"step {step} loss {shown.item() / dp.size():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
