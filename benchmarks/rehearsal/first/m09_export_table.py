# rehearse with: --nproc 4 --memory 120MB
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

ROWS, DIM = 65536, 64


def export(shard, rank, world):
    parts = [torch.empty_like(shard) for _ in range(world)] if rank == 0 else None
    dist.gather(shard, parts, dst=0)
    if rank != 0:
        return None
    table = torch.cat(parts)
    return table.cpu()


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(rank)
    shard = (torch.randn(ROWS, DIM) * 0.02).to(device).requires_grad_()
    gen = torch.Generator().manual_seed(50 + rank)

    for step in range(3):
        ids = torch.randint(0, ROWS, (256,), generator=gen).to(device)
        vec = F.embedding(ids, shard)
        loss = (vec.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            shard -= 0.1 * shard.grad
        shard.grad = None
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(step, mean.item() / world)

    table = export(shard.detach(), rank, world)
    if table is not None:
        print("exported", tuple(table.shape))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
