"""A rendezvous: where processes that have never heard of each other become ranks of one world."""

from __future__ import annotations

import datetime

import torch.distributed as dist


class Rendezvous:
    """One generation's meeting, over a store that all processes reach. After a death the rest meet in the next one.

    Each key carries the generation's number. A key of an earlier generation would be read as if it were of now: a
    process would find the meeting complete, and wait at the address of one that is dead.
    """

    def __init__(self, store: dist.Store, generation: int, *, limit: float = 30.0):
        self.store = dist.PrefixStore(f"generation {generation}", store)
        self.limit = datetime.timedelta(seconds=limit)

    def join(self, num_ranks: int) -> int | None:
        """This process's rank: how many came before it. None: all places were taken, so it is a spare.

        Raises dist.DistStoreError where fewer than `num_ranks` come within the limit.
        """
        place = self.store.add("arrived", 1) - 1  # the store adds, so that no two processes get the same number
        if place >= num_ranks:
            return None
        if place == num_ranks - 1:
            self.store.set("complete", "yes")
        self.store.wait(["complete"], self.limit)
        return place

    def make_group(self, rank: int, num_ranks: int, backend: str = "gloo") -> None:
        """The process group of this generation: each rank leaves its address in the store and reads the others'."""
        own = dist.PrefixStore("group", self.store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=num_ranks)

    def wait_for_the_end(self) -> None:
        """What a spare does: wait until this generation is over, and a place may be free in the next."""
        self.store.wait(["over"], datetime.timedelta(days=1))
