"""FSDP2 student, replicated teacher, sharded checkpoint that is read back."""
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def mlp(width, depth):
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)], nn.Linear(width, 8))


local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
dev = torch.device("cuda", local_rank)
mesh = init_device_mesh("cuda", (world,))
path = os.path.join(tempfile.gettempdir(), f"student_{os.environ.get('MASTER_PORT', '0')}")

torch.manual_seed(0)
teacher = mlp(32, 4).to(dev).eval().requires_grad_(False)
student = mlp(32, 2).to(dev)
for layer in student:
    fully_shard(layer, mesh=mesh)
fully_shard(student, mesh=mesh)
opt = torch.optim.AdamW(student.parameters(), lr=3e-3)


def step(x):
    loss = F.kl_div(student(x).log_softmax(-1), teacher(x).softmax(-1), reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    opt.step()
    return loss.detach(), norm.full_tensor()


gen = torch.Generator(device=dev).manual_seed(70 + rank)
for i in range(4):
    loss, norm = step(torch.randn(16, 32, device=dev, generator=gen))
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    if rank == 0:
        print(i, loss.item(), norm.item())
    if i == 1:
        dcp.save({"model": student.state_dict()}, checkpoint_id=path)

state = {"model": student.state_dict()}
dcp.load(state, checkpoint_id=path)
student.load_state_dict(state["model"])
dist.barrier(device_ids=[local_rank])
if rank == 0:
    shutil.rmtree(path, ignore_errors=True)
dist.destroy_process_group()
