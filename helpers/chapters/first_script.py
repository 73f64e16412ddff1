"""Provides the smallest distributed program, for chapter 00: torchrun --nproc-per-node=4 first_script.py"""

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")  # on GPUs "nccl"; waits until all ranks are connected
    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)  # every rank calls it, and every rank gets the sum
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} holds {x.item():g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
