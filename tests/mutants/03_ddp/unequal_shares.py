"""Whoever deals out and pads nothing: some ranks have one example more, and wait for ever."""

import torch

TASK = "03.sampler"
HINT = "unequal_shares"


class ShareSampler:
    def __init__(self, num_examples, rank, world_size, seed):
        self.num_examples, self.rank, self.world_size, self.seed = num_examples, rank, world_size, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(range(self.rank, self.num_examples, self.world_size))

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.num_examples, generator=generator).tolist()
        return iter(order[self.rank :: self.world_size])
