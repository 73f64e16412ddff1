import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--test-size", type=int, default=101)
    return p.parse_args()


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return x, (x[:, 0] > x[:, 1]).float()


def predict_all(model, x, rank, world, device):
    model.eval()
    part = x[rank::world].to(device)
    with torch.no_grad():
        preds = torch.sigmoid(model.module(part)).squeeze(1)
    gathered = [torch.zeros_like(preds) for _ in range(world)]
    dist.all_gather(gathered, preds)
    return torch.cat(gathered).cpu()


def main():
    args = parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", local_rank)

    model = DDP(nn.Linear(6, 1).to(device), device_ids=[local_rank])
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    x_train, y_train = make(320, 0)
    x_train, y_train = x_train[rank::world].to(device), y_train[rank::world].to(device)
    for step in range(args.steps):
        sel = slice(16 * step, 16 * (step + 1))
        logits = model(x_train[sel]).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y_train[sel])
        opt.zero_grad()
        loss.backward()
        opt.step()

    x_test, _ = make(args.test_size, 1)
    scores = predict_all(model, x_test, rank, world, device)
    if rank == 0:
        print("mean score", scores.mean().item(), "count", len(scores))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
