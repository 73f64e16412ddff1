"""What chapter 10 runs: a job in which one rank is slow, a script that stands still, weights that drift, a loader.

Compute is paced and loading sleeps, so that four ranks on two cores show what four GPUs would: labelled emulated, and
no speed. Functions that say "on a rank" are for `ranks.run`.

What station E of chapter 10 runs: 16 paced layers under DDP on a slow emulated link, tuned in several ways.

Functions that say "on a rank" are for `ranks.run`, on ranks whose link is LINK.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import statistics
import time
import warnings
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from helpers.commands.broken_jobs import broken_job
from helpers.commands.traces import Run
from helpers.commands.traces.waterfall import Waterfall
from helpers.observe.paced import PacedLinear, paced
from helpers.observe.watchdog import Watchdog
from helpers.parallel.ddp import DistributedDataParallel
from helpers.predict.time.data_parallel import BackwardPass, simulate_ddp_step
from helpers.records import Timeline
from helpers.specs import Link

LAYERS, WIDTH, ROWS, STEPS = 4, 64, 4, 8
FORWARD, BACKWARD, LOADING = 0.006, 0.010, 0.010  # seconds: of a layer, of a layer, of a batch
ILL = (2, 1.5)  # which rank is slow, and by which share of its compute
LOADED, COMPUTED, BATCH = 0.004, 0.020, 10  # seconds: of an item, of a step; items of a batch


class Rows(Dataset):
    """Items that cost waiting, as a disk or a network does."""

    def __init__(self, count: int, seconds: float, late: tuple[int, float] = (-1, 0.0)) -> None:
        self.count, self.seconds, self.late = count, seconds, late  # late: an item, and by how many seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.seconds + self.late[1] * (index == self.late[0]))
        return torch.ones(WIDTH)


def mended_job(slower: float = 0.0) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    """On a rank: torch's DDP around four paced layers, an optimizer, and batches for eight steps.

    slower: by which share of its compute this rank is slower than `FORWARD` and `BACKWARD` say.
    """
    pace = {"forward_seconds": FORWARD * (1 + slower), "backward_seconds": BACKWARD * (1 + slower)}
    layers = nn.Sequential(*(PacedLinear(WIDTH, WIDTH, **pace) for _ in range(LAYERS)))
    group = dist.new_group(backend="gloo")  # plain, as a job has it that never imports us
    caps = {"bucket_cap_mb": 0.0316}  # two layers in a message
    model = nn.parallel.DistributedDataParallel(layers, process_group=group, **caps)
    loader = DataLoader(Rows(ROWS * STEPS, LOADING / ROWS), batch_size=ROWS)
    dist.barrier()
    return model, torch.optim.SGD(model.parameters(), lr=1e-3), loader


def slow_job() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    """On a rank: the same, and one rank is slow."""
    return mended_job(ILL[1] * (dist.get_rank() == ILL[0]))


def parts_of_a_step(run: Run) -> tuple[int, dict[int, dict[str, float]]]:
    """The number of the step of median length, and rank -> part -> seconds in it: a machine that is busy in another
    step does not count."""
    fall = Waterfall.of(run)
    lengths = [max(sum(table[place].values()) for table in fall.tables.values()) for place in range(len(fall.steps))]
    place = lengths.index(statistics.median_low(lengths))
    return fall.steps[place], {rank: table[place] for rank, table in fall.tables.items()}


def spans_of_a_step(run: Run, number: int, rank: int) -> Timeline:
    """What a rank did in this step, cut at its ends, without the lane of the host and without whom it waits for."""
    step = next(one for one in run.steps[rank] if one.number == number)
    inside = [
        replace(span, start=max(span.start, step.start), end=min(span.end, step.end), name=span.name.partition(" ←")[0])
        for span in run.timeline.for_rank(rank).spans
        if span.lane != "host" and span.end > step.start and span.start < step.end
    ]
    return replace(run.timeline, spans=inside, held=(), title="", source="emulated")


# ---- it stands still ----


def monitored(absent: int, seconds: float = 1.0) -> str:
    """On a rank: what `monitored_barrier` says where one rank does not come."""
    group = dist.new_group(backend="gloo")
    if dist.get_rank() == absent:
        return ""
    try:
        dist.monitored_barrier(group, timeout=timedelta(seconds=seconds), wait_all_ranks=True)
    except RuntimeError as error:
        return str(error).split("]: ")[-1].split(". ")[0]
    return "all came"


# ---- the weights drift ----


def drifting(steps: int = 40) -> tuple[list[float], list[float], list[str]]:
    """On a rank: the patient of station D under a watchdog. Losses, norms of its LayerNorm, and what was found."""
    torch.manual_seed(dist.get_rank())
    model = runpy.run_path(str(broken_job("patient_05").path))["Block"](16, 64 // dist.get_world_size())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watchdog = Watchdog(model, optimizer, every=5, equal=lambda name: name.startswith("norm"))
    data = torch.Generator().manual_seed(0)
    losses, norms, said = [], [], []
    for _ in range(steps):
        x = torch.randn(32, 16, generator=data)
        loss = (model(x) - x.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        said += watchdog.step(loss)
        optimizer.step()
        losses.append(loss.item())
        norms.append(model.norm.weight.norm().item())
    faulthandler.cancel_dump_traceback_later()
    return losses, norms, said


# ---- variables of the environment, and the loader ----


def interface_set_late(name: str) -> list[str]:
    """On a rank: gloo's variable set after its group was made; what the group does, and what the next one does."""
    kept, group, said = os.environ.get("GLOO_SOCKET_IFNAME"), dist.new_group(backend="gloo"), []
    os.environ["GLOO_SOCKET_IFNAME"] = name
    try:
        for what in (lambda: dist.all_reduce(torch.ones(1), group=group), lambda: dist.new_group(backend="gloo")):
            try:
                what()
                said.append("runs")
            except RuntimeError as error:
                said.append(str(error).rsplit("] ", 1)[-1])
    finally:
        os.environ["GLOO_SOCKET_IFNAME"] = kept
    return said


def loading_seconds(num_workers: int, steps: int = 8) -> float:
    """Median seconds of a step that computes 20 ms on a batch of 10 items that take 4 ms each to load."""
    return statistics.median(_steps(Rows(BATCH * (steps + 4), LOADED), num_workers=num_workers)[-steps:])


def late_step_seconds(prefetch_factor: int, late: float = 0.25, batch: int = 24) -> float:
    """Seconds of the step for whose batch one item takes `late` seconds longer: two workers, 20 ms per batch."""
    rows = Rows(BATCH * (batch + 2), LOADED / 2, (BATCH * batch, late))
    return _steps(rows, num_workers=2, prefetch_factor=prefetch_factor)[batch - 1]


def _steps(rows: Rows, **options: int) -> list[float]:
    """Seconds of each step but the first: loading, or waiting for it, and 20 ms of compute."""
    began, took = None, []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # these workers wait, and need no core
        for _ in DataLoader(rows, BATCH, **options):
            paced(lambda: None, COMPUTED)
            now = time.perf_counter()
            took += [now - began] if began else []
            began = now
    return took


LINK = Link(latency=5e-3, bandwidth=12.5e6)
NUM_TUNED_LAYERS, TUNED_WIDTH, TUNED_FORWARD, TUNED_BACKWARD = 16, 128, 0.004, 0.015  # seconds of a layer
LAYER_BYTES = 4 * TUNED_WIDTH * (TUNED_WIDTH + 1)


class Stack(nn.Module):
    """16 paced layers. in_order: whether they are registered in the order in which forward uses them."""

    def __init__(self, in_order: bool = True) -> None:
        super().__init__()
        pace = {"forward_seconds": TUNED_FORWARD, "backward_seconds": TUNED_BACKWARD}
        self.layers = nn.ModuleList(PacedLinear(TUNED_WIDTH, TUNED_WIDTH, **pace) for _ in range(NUM_TUNED_LAYERS))
        self.in_order = in_order

    def forward(self, x: Tensor) -> Tensor:  # (B, TUNED_WIDTH) to the same
        for layer in self.layers if self.in_order else reversed(self.layers):
            x = layer(x)
        return x


def cap_of(num_layers: int) -> float:
    """The bucket_cap_mb, in MiB, that closes a bucket after so many layers, whether a weight ends them or a bias."""
    return (num_layers * LAYER_BYTES - 2 * TUNED_WIDTH) / 2**20


def predicted_seconds(num_layers: int, strategy: str = "overlapped") -> float:
    backward = BackwardPass(
        names=tuple(f"layer {number}" for number in reversed(range(NUM_TUNED_LAYERS))),
        num_bytes=(LAYER_BYTES,) * NUM_TUNED_LAYERS, seconds=(TUNED_BACKWARD,) * NUM_TUNED_LAYERS, forward_seconds=NUM_TUNED_LAYERS * TUNED_FORWARD,
    )  # fmt: skip
    caps = {"bucket_cap_mb": cap_of(num_layers), "first_bucket_mb": cap_of(num_layers)}
    return simulate_ddp_step(backward, link=LINK, world_size=4, strategy=strategy, **caps).duration


def step_seconds(model: nn.Module, steps: int) -> list[float]:
    """On a rank: of each step, from a barrier to the end of backward."""
    took = []
    for _ in range(steps):
        model.zero_grad()
        dist.barrier()
        began = time.perf_counter()
        model(torch.ones(2, TUNED_WIDTH)).sum().backward()
        took.append(time.perf_counter() - began)
    return took


def bucketed(num_layers: int) -> list[float]:
    """On a rank: three steps of torch's DDP, whose buckets hold so many layers."""
    return step_seconds(nn.parallel.DistributedDataParallel(Stack(), bucket_cap_mb=cap_of(num_layers)), 3)


def ordered(num_layers: int, *, overlap: bool = True, in_order: bool = True) -> list[float]:
    """On a rank: three steps of our DDP, with or without overlap, its layers registered in forward's order or not."""
    caps = {"bucket_cap_mb": cap_of(num_layers), "first_bucket_mb": cap_of(num_layers)}
    return step_seconds(DistributedDataParallel(Stack(in_order), overlap=overlap, **caps), 3)
