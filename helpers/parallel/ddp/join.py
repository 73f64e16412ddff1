"""Uneven inputs: a rank whose data has run out keeps the others company until all are done.

DDP's all-reduces need every rank. A rank that leaves its loop early would make the others wait for ever. Under
`Join` it mirrors their messages with zeros instead. Before each forward the ranks all-reduce N numbers, one a rank:
1 for "I have data". The sum tells everyone who is still active. Legend: N = ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from helpers.parallel.shared.agreement import broadcast_tensors


class Join:
    """`with Join(model): for batch in my_batches: ...`, where ranks may have different numbers of batches.

    model: a DistributedDataParallel. Backward averages over the ranks that still have data, which equals one process
    on what is left; divide_by_active=False divides by N throughout, as torch's Join does by default. At the end every
    rank gets the parameters and buffers of one that stayed to the end, so all are equal again. Unlike torch's
    Join it shadows nothing but DDP: no collective inside the model. Each training forward outside `no_sync` must be
    followed by one backward; an accumulation that runs out of data halfway is dropped.
    """

    def __init__(self, model, *, divide_by_active: bool = True):
        self.model, self.divide_by_active = model, divide_by_active
        self.group, self.rank = model.group, dist.get_rank(model.group)
        self.source: int | None = None  # the first rank that was active in the last round

    def __enter__(self) -> Join:
        self.model.joining = self
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:
            while kind is None and self.announce(active=False):
                self.model.shadow_step()
            if kind is None and self.source is not None:
                module = self.model.module
                broadcast_tensors([*module.parameters(), *module.buffers()], self.group, self.source)
        finally:
            self.model.joining = None
            self.model.divisor, self.model.source = self.model.world_size, 0

    def announce(self, *, active: bool) -> bool:
        """Tell all ranks whether this one has data; learn who has. Returns False once nobody has."""
        flags = torch.zeros(self.model.world_size, dtype=torch.int32, device=self.model.slots[0].parameter.device)
        flags[self.rank] = int(active)
        dist.all_reduce(flags, group=self.group)
        still = flags.nonzero().flatten().tolist()
        if not still:
            return False
        self.source = self.model.source = still[0]
        self.model.divisor = len(still) if self.divide_by_active else self.model.world_size
        return True
