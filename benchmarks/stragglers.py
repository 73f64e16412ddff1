"""One rank is slow on purpose; does `explain` name it, and say why, from torch.profiler's traces alone?

    python -m benchmarks.stragglers [runs]

Seeded runs of four ranks under our DDP, torch's DDP and FSDP2. Compute is paced and the link emulated: nothing here is
a speed. A seed draws the rank, by how much it is slow, and for "one in ten" which steps and whether compute or data.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

from benchmarks.paired import write_table
from benchmarks.traces import trace_steps
from helpers.commands.traces import explain, read
from helpers.observe.paced import PacedLinear
from helpers.parallel.ddp import DistributedDataParallel
from helpers.ranks import Ranks
from helpers.ranks.wire import wire
from helpers.specs import Link

NUM_RANKS, STEPS, SKIPPED = 4, 20, 3
LAYERS, WIDTH, ROWS = 4, 64, 4
FORWARD, BACKWARD, LOADING = 0.008, 0.012, 0.010  # seconds: of a layer, of a layer, of a batch
LINK = Link(latency=1e-4, bandwidth=2e7)
CAUSES = ("compute", "data", "link", "one in ten")
FOUND_AS = {"compute": "compute", "data": "data", "communication": "link"}


class Samples(Dataset):
    """One batch's rows; the first of them takes as long as `seconds` says for this step."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.seconds) * ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % ROWS == 0:
            time.sleep(self.seconds[index // ROWS])
        return torch.ones(WIDTH)


def drawn(seed: int) -> dict:
    """What is ill in the run of this seed."""
    chance = random.Random(seed)
    ill = {"engine": ("ours", "torch's DDP", "FSDP2")[seed % 3], "cause": CAUSES[seed % 4]}
    ill |= {"rank": chance.randrange(NUM_RANKS), "slower": chance.uniform(0.4, 0.8), "phase": chance.randrange(10)}
    return ill | {"part": chance.choice(("compute", "data")) if ill["cause"] == "one in ten" else ill["cause"]}


def wrapped(model: nn.Sequential, engine: str) -> nn.Module:
    if engine == "FSDP2":
        for layer in model:
            fully_shard(layer)
        return fully_shard(model)
    if engine == "ours":
        return DistributedDataParallel(model, bucket_cap_mb=0.015, first_bucket_mb=0.015)
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.015)


def train(ill: dict, folder: str) -> None:
    """On a rank: the steps, in a trace."""
    is_ill = dist.get_rank() == ill["rank"]
    extra = [0.0] * (STEPS + SKIPPED)
    step_seconds = LAYERS * (FORWARD + BACKWARD) + LOADING
    if is_ill and ill["cause"] == "one in ten":
        extra = [step_seconds * 2 * ill["slower"] * (step % 10 == ill["phase"]) for step in range(len(extra))]
    elif is_ill:
        extra = [step_seconds * ill["slower"]] * len(extra)
    slow_link = is_ill and ill["part"] == "link"  # of this rank alone: `Ranks(link=…)` gives all the same one
    wire._world.session.link.link = Link(
        latency=LINK.latency, bandwidth=LINK.bandwidth / (1 + 20 * ill["slower"] * slow_link)
    )
    layers = [PacedLinear(WIDTH, WIDTH, forward_seconds=FORWARD, backward_seconds=BACKWARD) for _ in range(LAYERS)]
    model = wrapped(nn.Sequential(*layers), ill["engine"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    waits = [LOADING + seconds * (ill["part"] == "data") for seconds in extra]
    dist.barrier()
    with trace_steps(folder, wait=SKIPPED - 1, warmup=1, active=STEPS) as profiler:
        for step, batch in enumerate(DataLoader(Samples(waits), batch_size=ROWS)):
            share = extra[step] / LAYERS / 2 * (ill["part"] == "compute")
            for layer in layers:
                layer.forward_seconds, layer.backward_seconds = FORWARD + share, BACKWARD + share
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            profiler.step()
    wire._world.session.link.link = LINK


def verdict(ill: dict, folder: Path) -> tuple[bool, bool, str]:
    """Whether the rank is right, whether its cause is, and what was said."""
    found = explain(read(folder)).straggler
    if found is None:
        return False, False, "nobody"
    part = FOUND_AS.get(found.cause, found.cause)
    cause = "one in ten" if found.is_seldom else part
    said = f"rank {found.rank}, {part}{' now and then' if found.is_seldom else ''}"
    return found.rank == ill["rank"], (cause, part) == (ill["cause"], ill["part"]), said


def main(runs: int) -> None:
    tally: dict[tuple[str, str], list[int]] = {}
    with Ranks(NUM_RANKS, device="cpu", link=LINK, quiet=True) as ranks, tempfile.TemporaryDirectory() as folder:
        for seed in range(runs):
            ill, where = drawn(seed), Path(folder) / str(seed)
            ranks.run(train, ill, str(where))
            rank, cause, said = verdict(ill, where)
            row = tally.setdefault((ill["engine"], ill["cause"]), [0, 0, 0])
            for place, right in enumerate((rank, rank and cause, True)):
                row[place] += right
            print(f"{seed:2} {'right' if rank and cause else 'WRONG'}  {ill}  said: {said}", flush=True)
    whole = [sum(column) for column in zip(*tally.values(), strict=True)]
    rows = [
        {
            "engine": engine,
            "what is slow": cause,
            "rank right": f"{rank} of {count}",
            "rank and cause right": f"{both} of {count}",
        }
        for (engine, cause), (rank, both, count) in sorted({**tally, ("all", ""): whole}.items())
    ]
    print(write_table("stragglers", rows, f"python -m benchmarks.stragglers {runs}"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
