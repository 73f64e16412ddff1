"""One expert per rank, tokens are sent where the router wants them (router frozen, experts trained)."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn

TOKENS, D = 48, 16


def dispatch(x, dest, world):
    order = dest.argsort(stable=True)
    x = x[order].contiguous()
    counts = torch.bincount(dest, minlength=world).tolist()
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x, output_split_sizes=counts, input_split_sizes=counts)
    return received


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    dev = torch.device("cuda", local_rank)

    torch.manual_seed(0)
    router = nn.Linear(D, world, bias=False).to(dev).requires_grad_(False)
    torch.manual_seed(1 + rank)
    expert = nn.Sequential(nn.Linear(D, 64), nn.SiLU(), nn.Linear(64, D)).to(dev)
    opt = torch.optim.AdamW(expert.parameters(), lr=1e-2)
    for step in range(5):
        x = torch.randn(TOKENS, D, device=dev) + 0.3 * rank
        dest = router(x).argmax(-1)
        tokens = dispatch(x, dest, world)
        loss = (expert(tokens) - tokens.flip(-1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"{step}: {mean.item() / world:.4f}")
    dist.destroy_process_group()


main()
