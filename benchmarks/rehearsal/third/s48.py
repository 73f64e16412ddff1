import functools
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


def build_model():
    torch.manual_seed(13)
    return nn.Sequential(
        nn.Linear(24, 96), nn.ReLU(),
        nn.Linear(96, 96), nn.ReLU(),
        nn.Linear(96, 8),
    )


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()

    model = FSDP(
        build_model(),
        auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=5000),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        device_id=torch.cuda.current_device(),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 4))

    gen = torch.Generator().manual_seed(rank)
    for step in range(10):
        x = torch.randn(32, 24, generator=gen).cuda()
        y = x[:, :8].argmax(dim=1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.05)
        optimizer.step()
        scheduler.step()

        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / dist.get_world_size():.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
