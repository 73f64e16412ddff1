import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.lin = nn.Linear(dim, dim)

    def forward(self, x):
        return x + torch.relu(self.lin(self.norm(x)))


class Net(nn.Module):
    def __init__(self, dim=32, depth=3):
        super().__init__()
        self.stem = nn.Linear(16, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = dist.get_rank()
    # shards inside a pair, copies across the pairs
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))

    torch.manual_seed(1)
    model = Net().cuda()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

    g = torch.Generator().manual_seed(0)
    x = torch.randn(256, 16, generator=g)
    data = TensorDataset(x, x[:, :4].argmax(dim=1))
    sampler = DistributedSampler(data, seed=5)
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for bx, by in loader:
            loss = nn.functional.cross_entropy(model(bx.cuda()), by.cuda())
            loss.backward()
            opt.step()
            opt.zero_grad()
        value = loss.detach().clone()
        # all shards of one copy first, then over the copies
        dist.all_reduce(value, group=mesh.get_group("shard"))
        dist.all_reduce(value, group=mesh.get_group("replicate"))
        if rank == 0:
            print(f"epoch {epoch} loss {value.item() / dist.get_world_size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
