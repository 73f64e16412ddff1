import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class OverlapDP:
    def __init__(self, model):
        self.works = []
        for p in model.parameters():
            dist.broadcast(p.data, src=0)
            p.register_post_accumulate_grad_hook(self._launch)

    def _launch(self, p):
        self.works.append((dist.all_reduce(p.grad, async_op=True), p))

    def finish(self):
        world = dist.get_world_size()
        for work, p in self.works:
            work.wait()
            p.grad.div_(world)
        self.works.clear()


def main():
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48),
                          nn.ReLU(), nn.Linear(48, 3)).cuda()
    dp = OverlapDP(model)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(rank)
    for step in range(4):
        x = torch.randn(16, 12, generator=gen).cuda()
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        dp.finish()
        opt.step()
        if rank == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
