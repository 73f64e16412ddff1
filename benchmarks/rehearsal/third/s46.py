import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

PATH = os.path.join(tempfile.gettempdir(), "fsdp_full.pt")


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.a = nn.Linear(dim, dim)
        self.b = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.b(torch.tanh(self.a(x)))


def make_net():
    return nn.Sequential(nn.Linear(10, 32), Residual(32), Residual(32), nn.Linear(32, 1))


def full_state(model):
    cfg = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, cfg):
        return model.state_dict()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    torch.manual_seed(rank)
    # sync_module_states makes the start equal although the seeds differ
    model = FSDP(
        make_net(),
        auto_wrap_policy=ModuleWrapPolicy({Residual}),
        device_id=local_rank,
        sync_module_states=True,
        use_orig_params=True,
    )
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(10):
        x = torch.randn(16, 10, device="cuda")
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        opt.zero_grad()
        loss.backward()
        model.clip_grad_norm_(1.0)
        opt.step()

    state = full_state(model)
    if rank == 0:
        torch.save(state, PATH)
        plain = make_net()
        plain.load_state_dict(torch.load(PATH, map_location="cpu"))
        x = torch.ones(1, 10)
        print("prediction for ones", plain(x).item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
