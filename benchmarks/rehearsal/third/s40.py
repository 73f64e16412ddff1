import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class FineTuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.adapter = nn.Linear(64, 64)
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        with torch.no_grad():
            feats = self.backbone(x)
        return self.head(feats + self.adapter(feats))


def param_groups(net):
    return [
        {"params": net.adapter.parameters(), "lr": 1e-3},
        {"params": net.head.parameters(), "lr": 1e-2, "weight_decay": 0.0},
    ]


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    torch.manual_seed(8)
    net = FineTuned().cuda()
    net.backbone.requires_grad_(False)
    model = DDP(net, device_ids=[local_rank])
    opt = torch.optim.AdamW(param_groups(net))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, [lambda e: 1.0, lambda e: 0.5 ** e])
    scaler = torch.amp.GradScaler("cuda")

    g = torch.Generator().manual_seed(9)
    x = torch.randn(192, 32, generator=g)
    data = TensorDataset(x, x[:, :5].argmax(dim=1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for bx, by in loader:
            opt.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(bx.cuda()), by.cuda())
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_([p for p in net.parameters() if p.requires_grad], 1.0)
            scaler.step(opt)
            scaler.update()
        sched.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} lrs {sched.get_last_lr()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
