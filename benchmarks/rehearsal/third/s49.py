import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

FOLDER = os.path.join(tempfile.gettempdir(), "dcp_resume_demo")


def build(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(9, 36), nn.ReLU(), nn.Linear(36, 3)).cuda()
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=4e-3)


def train(model, opt, steps, gen):
    for _ in range(steps):
        x = torch.randn(18, 9, generator=gen).cuda()
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(dim=1))
        loss.backward()
        opt.step()
        opt.zero_grad()
    return loss.item()


def save(model, opt):
    model_state, opt_state = get_state_dict(model, opt)
    dcp.save({"model": model_state, "optim": opt_state}, checkpoint_id=FOLDER)


def resume(model, opt):
    model_state, opt_state = get_state_dict(model, opt)
    dcp.load({"model": model_state, "optim": opt_state}, checkpoint_id=FOLDER)
    set_state_dict(model, opt, model_state_dict=model_state, optim_state_dict=opt_state)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    gen = torch.Generator().manual_seed(70 + rank)

    model, opt = build(seed=0)
    first = train(model, opt, 6, gen)
    save(model, opt)

    again, again_opt = build(seed=1)
    resume(again, again_opt)
    for a, b in zip(model.parameters(), again.parameters()):
        assert torch.equal(a.to_local(), b.to_local())
    second = train(again, again_opt, 4, gen)
    if rank == 0:
        print(f"loss before {first:.4f}, after resuming {second:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
