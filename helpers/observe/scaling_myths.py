"""Two more runs that refute what is often said, as `myths.py` has them: of more GPUs, and of a number for their use."""

from __future__ import annotations

import torch
from torch import nn

from helpers.observe.myths import Found, sent_in_a_step
from helpers.parallel.ddp import DistributedDataParallel
from helpers.predict.time.flops import mfu
from helpers.predict.time.measured import published
from helpers.ranks import Ranks


def twice_the_gpus_halve_the_time(ranks: Ranks) -> Found:
    """Bytes that a rank of four sends in a step of DDP, over those of a rank of two. And two published pairs of steps
    (Narayanan et al. 2021, table 2), in times as fast: twice the GPUs with tp and pp, four times with ZeRO-3."""

    def sent() -> float:
        return sent_in_a_step(
            lambda model: (DistributedDataParallel(model), torch.optim.SGD(model.parameters())), nn.Linear(16, 64)
        )

    seconds = {(row.group[-3:], row.name[:13]): row.seconds for row in published()}
    return {
        "sent": ranks.run(sent)[0] / ranks[:2].run(sent)[0],
        "doubled": seconds["PTD", "529.6B n=1120"] / seconds["PTD", "529.6B n=2240"],
        "four_times": seconds["O-3", "174.6B n=384 "] / seconds["O-3", "174.6B n=1536"],
    }


def mfu_says_how_fast(ranks: Ranks) -> Found:
    """A published step of 70B on A100 and one on H100 (llm-foundry's table), with the same sequences: the MFU of each,
    and how many times as many tokens per second each H100 does. On no rank."""
    found, rows = {}, {row.name: row for row in published()}
    for key, row in (("old", rows["70b n=64 mbs8x4"]), ("new", rows["70b n=128 mbs8x1"])):
        each = row.plan.micro_batch * row.plan.num_microbatches  # sequences of a GPU: dp is all of them
        found[key] = mfu(row.model, batch=each, seconds=row.seconds, peak_flops=row.cluster.gpu.flops)
        found[f"{key}_rate"] = each * row.model.seq / row.seconds
    return {"old": found["old"], "new": found["new"], "faster": found["new_rate"] / found["old_rate"]}
