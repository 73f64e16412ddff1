"""Whoever only deals out: neighbours in the file stay neighbours in the batch."""

import math

TASK = "03.sampler"
HINT = "not_shuffled"


class ShareSampler:
    def __init__(self, num_examples, rank, world_size, seed):
        self.num_examples, self.rank, self.world_size, self.seed = num_examples, rank, world_size, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return math.ceil(self.num_examples / self.world_size)

    def __iter__(self):
        order = list(range(self.num_examples))
        order += order[: len(self) * self.world_size - len(order)]
        return iter(order[self.rank :: self.world_size])
