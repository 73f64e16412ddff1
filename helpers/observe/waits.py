"""Two more runs that refute what is often said, as `myths.py` has them: what a rank does while it waits for another.

No clock is read: time is counted in the parts of work that the last rank still has to do.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from helpers.observe.myths import Found
from helpers.ranks import Ranks


def busy_is_fast(ranks: Ranks) -> Found:
    """Rank 3 has four parts of work, the others one. Looked at after each part, as nvidia-smi looks at a GPU: in which
    share of the looks something runs on rank 0, be it a message that waits, and in which share it has computed."""
    computed, waited = ranks.run(_looks, 4)[0]
    return {"busy": (computed + waited) / 4, "computed": computed / 4}


def a_long_message_is_a_slow_network(ranks: Ranks) -> Found:
    """The same message with rank 3 two parts of work behind, and eight: how many parts long it runs on rank 0."""
    return {f"late_by_{late}": ranks.run(_looks, late + 1)[0][1] for late in (2, 8)}


def _looks(parts: int) -> tuple[int, int]:
    """Looks at this rank in which it has computed, and in which its all-reduce runs and it does nothing else.

    Rank 3 has `parts` products and comes to the all-reduce last; a barrier in another group ends each part.
    """
    own, ticks = parts if dist.get_rank() == 3 else 1, dist.new_group()
    x, message, computed, waited = torch.ones(64, 64), None, 0, 0
    for part in range(parts):
        if part < own:
            x, computed = x @ x / 64, computed + 1
        else:
            message = message or dist.all_reduce(x, async_op=True)
            waited += not message.is_completed()
        dist.barrier(ticks)
    (message or dist.all_reduce(x, async_op=True)).wait()
    return computed, waited
