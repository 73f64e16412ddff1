import os

import torch
import torch.distributed as dist
import torch.nn as nn


class BucketReducer:
    """Flat buckets, reduced asynchronously and waited for before the step."""

    def __init__(self, params, bucket_elems):
        self.buckets, current, size = [], [], 0
        for p in params:
            current.append(p)
            size += p.numel()
            if size >= bucket_elems:
                self.buckets.append(current)
                current, size = [], 0
        if current:
            self.buckets.append(current)

    def reduce(self):
        world = dist.get_world_size()
        pending = []
        for bucket in reversed(self.buckets):
            flat = torch.cat([p.grad.reshape(-1) for p in bucket])
            work = dist.all_reduce(flat, async_op=True)
            pending.append((work, flat, bucket))
        for work, flat, bucket in pending:
            work.wait()
            flat /= world
            offset = 0
            for p in bucket:
                p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
                offset += p.numel()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    torch.manual_seed(100 + rank)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3)).cuda()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    reducer = BucketReducer(list(model.parameters()), bucket_elems=1000)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)

    for step in range(12):
        x = torch.randn(16, 12).cuda()
        y = x[:, :3].argmax(dim=1)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        reducer.reduce()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if rank == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
