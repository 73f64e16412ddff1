"""Decides which examples each rank trains on.

DistributedSampler gives this rank's indices, equal to those of torch.utils.data.DistributedSampler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class DistributedSampler(Sampler[int]):
    """Gives rank r of N the shuffled indices r, r + N, r + 2N, ...: shares of equal length that cover the data set.

    Every rank shuffles the whole set in the same way, with seed + epoch, so no message is needed. Without `set_epoch`
    every epoch has the order of the first. If N does not divide the set, the first indices are repeated at the end
    (`drop_last=False`: a few examples count twice) or the last ones are left out (`drop_last=True`). num_replicas and
    rank default to those of the process group. Raises ValueError for a rank outside 0 .. N - 1 or an empty set.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ):
        self.num_replicas = dist.get_world_size() if num_replicas is None else num_replicas
        self.rank = dist.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"DistributedSampler got rank {self.rank} of {self.num_replicas}: give a rank from 0 to "
                f"{self.num_replicas - 1}"
            )
        if len(dataset) == 0:
            raise ValueError("DistributedSampler got an empty data set: there is nothing to sample")
        self.dataset, self.shuffle, self.seed, self.drop_last, self.epoch = dataset, shuffle, seed, drop_last, 0

    def set_epoch(self, epoch: int) -> None:
        """Shuffle the next pass differently. Call it with the same number on every rank before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of examples of this rank in one epoch."""
        share = len(self.dataset) / self.num_replicas
        return math.floor(share) if self.drop_last else math.ceil(share)

    def __iter__(self) -> Iterator[int]:
        total = len(self) * self.num_replicas
        indices = self._order()
        rounds = math.ceil(total / len(indices))  # more than 1 where the set must be padded
        same_for_all = (indices * rounds)[:total]  # padded by repetition, or cut
        return iter(same_for_all[self.rank :: self.num_replicas])

    def _order(self) -> list[int]:
        """Return all indices in the order of this epoch."""
        if not self.shuffle:
            return list(range(len(self.dataset)))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(len(self.dataset), generator=generator).tolist()
