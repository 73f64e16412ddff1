"""Whoever rounds down: some examples are never seen in this epoch."""

import torch

TASK = "03.sampler"
HINT = "tail_dropped"


class ShareSampler:
    def __init__(self, num_examples, rank, world_size, seed):
        self.num_examples, self.rank, self.world_size, self.seed = num_examples, rank, world_size, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.num_examples // self.world_size

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.num_examples, generator=generator).tolist()
        order = order[: len(self) * self.world_size]
        return iter(order[self.rank :: self.world_size])
