"""Two more runs that refute what is often said, as `myths.py` has them: what gloo forgives, what `isend` has done."""

from __future__ import annotations

import torch
import torch.distributed as dist

from helpers.observe.myths import Found
from helpers.ranks import Ranks, wire
from helpers.ranks.nccl import play


def it_ran_on_gloo(ranks: Ranks) -> Found:
    """Each of four ranks passes its number on, in three ways: how many end on gloo with the right number, and in how
    many of them NCCL's rules find nothing."""

    def step(way: str) -> tuple[bool, list]:
        rank, size = dist.get_rank(), dist.get_world_size()
        got, before = torch.zeros(()), (rank - 1) % size
        to, come = (dist.isend, torch.tensor(float(rank)), (rank + 1) % size), (dist.irecv, got, before)
        with wire.journaled() as records:
            if way == "batch":
                works = dist.batch_isend_irecv([dist.P2POp(*to), dist.P2POp(*come)])
            else:
                works = [call(tensor, peer) for call, tensor, peer in ((to, come) if way == "isend" else (come, to))]
            for work in works:
                work.wait()
        return got.item() == before, records

    ends = [zip(*ranks.run(step, way), strict=True) for way in ("isend", "irecv", "batch")]
    right, clean = zip(*((all(are_right), not play(journals)) for are_right, journals in ends), strict=True)
    return {"gloo": sum(right), "nccl": sum(clean)}


def a_send_that_returned_has_sent(ranks: Ranks) -> Found:
    """Rank 0 holds 1, calls isend, writes 7 into the tensor once that has returned, and only then rank 1 receives."""

    def step() -> float:
        x = torch.ones(())
        work = dist.isend(x, 1) if dist.get_rank() == 0 else None
        if work is not None:
            x.fill_(7.0)
        dist.barrier()
        work.wait() if work is not None else dist.recv(x, 0)
        return x.item()

    return {"arrived": ranks[:2].run(step)[1]}
