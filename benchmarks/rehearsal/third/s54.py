import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn


def average_gradients(model, world):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad /= world


class Regressor(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)

    # every worker draws its own batches
    torch.manual_seed(args.seed + rank)
    model = Regressor(13, 26).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)

    for step in range(args.steps):
        x = torch.randn(32, 13, device=device)
        y = x[:, 0] * 2 - x[:, 5]
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        average_gradients(model, world)
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step}: {loss.item():.4f}")

    if rank == 0:
        print("weight norm", model.layers[0].weight.norm().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
