"""Gives processes that have never heard of each other their ranks, and finds the plan for those left after a death.

The processes of an elastic job meet in a key-value store (torch's TCPStore), which the job's agent (agent.py) serves.
They train together for one generation, which ends when one of them dies. A plan says how the model is spread over
ranks: dp replicas, each over tp x pp ranks.
"""

from __future__ import annotations

import datetime
from dataclasses import replace

import torch.distributed as dist

from helpers.specs import Plan


def connect(port: int) -> dist.TCPStore:
    """A connection to the agent's store, on this machine."""
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)


class Rendezvous:
    """The rendezvous of one generation, in a store that all processes reach. After a death there is a new one.

    Each key carries the generation's number. Otherwise a process could read a key of an earlier generation, find the
    rendezvous complete, and wait at the address of a rank that is dead.
    """

    def __init__(self, store: dist.Store, generation: int, *, limit: float = 30.0):
        self.store = dist.PrefixStore(f"generation {generation}", store)
        self.limit = datetime.timedelta(seconds=limit)

    def join(self, num_ranks: int) -> int | None:
        """This process's rank: how many came before it. None if all ranks were taken, so that it is a spare.

        Raises dist.DistStoreError where fewer than `num_ranks` come within the limit.
        """
        rank = self.store.add("arrived", 1) - 1  # the store adds atomically, so no two processes get the same number
        if rank >= num_ranks:
            return None
        if rank == num_ranks - 1:
            self.store.set("complete", "yes")
        self.store.wait(["complete"], self.limit)
        return rank

    def make_group(self, rank: int, num_ranks: int, backend: str = "gloo") -> None:
        """Makes the process group of this generation. The ranks exchange their addresses through the store."""
        group_store = dist.PrefixStore("group", self.store)
        dist.init_process_group(backend, store=group_store, rank=rank, world_size=num_ranks)

    def wait_for_the_end(self) -> None:
        """What a spare does: it waits until the agent ends this generation."""
        self.store.wait(["over"], datetime.timedelta(days=1))


def regroup(plan: Plan, alive: int, batch: int) -> Plan | None:
    """The nearest plan for `alive` processes: as many replicas as before, or fewer; None where not even one fits.

    A replica (pp x tp ranks) cannot become smaller, since its split decides what fits into a rank's memory. The number
    of replicas can: the global batch of `batch` sequences stays as it is, and each replica takes a larger share of it.
    The losses therefore stay the same. The replicas must divide the batch, and processes beyond that become spares.
    """
    ranks_per_replica = plan.world_size // plan.dp
    for dp in range(min(plan.dp, alive // ranks_per_replica), 0, -1):
        if batch % (dp * plan.num_microbatches) == 0:
            return replace(plan, dp=dp)
    return None
