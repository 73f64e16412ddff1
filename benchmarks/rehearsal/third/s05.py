import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


class Net(nn.Module):
    def __init__(self, dim=32, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    torch.manual_seed(7)
    model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=local_rank)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)

    g = torch.Generator().manual_seed(50 + rank)
    for step in range(6):
        x = torch.randn(16, 32, generator=g).cuda()
        y = torch.randint(0, 4, (16,), generator=g).cuda()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optim.step()
        optim.zero_grad()

    # one file is enough, so leave it to the first rank
    if rank == 0:
        cfg = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, cfg):
            state = model.state_dict()
        torch.save(state, os.path.join(tempfile.gettempdir(), "fsdp_net.pt"))
        print("saved")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
