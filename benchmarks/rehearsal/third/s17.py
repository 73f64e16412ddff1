import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

OUT = os.path.join(tempfile.gettempdir(), "dcp_run")


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)).cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mp_policy=policy)
    return model


def train_epoch(model, opt, gen):
    last = None
    for _ in range(5):
        x = torch.randn(16, 20, generator=gen).cuda()
        y = torch.randint(0, 5, (16,), generator=gen).cuda()
        last = nn.functional.cross_entropy(model(x).float(), y)
        last.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
    return last.item()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    model = build()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    for epoch in range(2):
        loss = train_epoch(model, opt, gen)
        state = {"model": get_model_state_dict(model)}
        if rank == 0:
            print(f"epoch {epoch} loss {loss:.4f}, saving")
            dcp.save(state, checkpoint_id=os.path.join(OUT, str(epoch)))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
