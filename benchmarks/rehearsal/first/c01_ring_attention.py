import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

B, T, DIM = 2, 6, 16


def rotate(block, rank, world):
    nxt = torch.empty_like(block)
    ops = [dist.P2POp(dist.isend, block, (rank + 1) % world),
           dist.P2POp(dist.irecv, nxt, (rank - 1) % world)]
    return nxt, dist.batch_isend_irecv(ops)


def ring_scores(q, kv, rank, world):
    """Sum over all segments of softmax-free attention, one hop at a time."""
    out = torch.zeros_like(q)
    cur = kv.detach().contiguous()
    for hop in range(world):
        if hop < world - 1:
            nxt, reqs = rotate(cur, rank, world)
        out = out + (q @ cur.transpose(1, 2)) @ cur / (T * world)
        if hop < world - 1:
            for r in reqs:
                r.wait()
            cur = nxt
    return out


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    q_proj, kv_proj = nn.Linear(DIM, DIM).to(device), nn.Linear(DIM, DIM).to(device)
    opt = torch.optim.SGD(q_proj.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(rank)
    for step in range(3):
        x = torch.randn(B, T, DIM, generator=gen).to(device)
        loss = F.mse_loss(ring_scores(q_proj(x), kv_proj(x), rank, world), x)
        opt.zero_grad()
        loss.backward()
        for p in q_proj.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        opt.step()
        if rank == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
