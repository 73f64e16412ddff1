"""Runs chapter 10: a job with a slow rank, a hang, weights that drift apart, data loaders, and buckets that are tuned.

Compute is paced and loading sleeps, so that four ranks on two cores show what four GPUs would. The results are
therefore emulated, and say nothing about the speed of this machine. A `PacedLinear` is a linear layer whose forward and
backward take the given seconds. Functions whose docstring begins with "On a rank" are for `ranks.run(f)`, which calls f
in each process of a pool and returns the list of results. Those for buckets need ranks with the emulated link
TUNING_LINK. Functions that end in `_scene` return a picture. A `TraceRun` is what torch.profiler recorded of a job,
read from its files: steps and a timeline by rank. Where a docstring names a guess, such as 10.moving, the text that is
returned is one of its choices, word for word (helpers/chapters/__init__.py has the rule).
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
from helpers.commands.jobs.hang import HangReport, position_sentences
from helpers.commands.traces import TraceRun
from helpers.commands.traces.waterfall import Waterfall
from helpers.draw import Axis, Part, calls_scene, curves_scene, parts_scene
from helpers.draw.scene import Scene
from helpers.draw.timelines import trace_scene
from helpers.draw.waterfall import PART_KINDS, waterfall_scene
from helpers.observe.paced import PacedLinear, paced
from helpers.observe.stopwatch import seconds_of_steps
from helpers.observe.watchdog import Watchdog
from helpers.parallel.ddp import DistributedDataParallel
from helpers.predict.time.data_parallel import BackwardPass, simulate_ddp_step
from helpers.ranks import Ranks
from helpers.records import Timeline, covered_seconds
from helpers.specs import Link

LAYERS, WIDTH, ROWS, STEPS = 4, 64, 4, 8  # of the job: layers and their width, rows of a batch, steps
FORWARD, BACKWARD, LOADING = 0.006, 0.010, 0.010  # seconds: of a layer, of a layer, of a batch
SLOW_RANK, ADDED_SHARE = 2, 1.5  # the slow rank of `slow_job`, whose compute takes 1 + 1.5 times as long
ITEM_SECONDS, STEP_SECONDS, ITEMS = 0.004, 0.020, 10  # to load an item, to compute a step; items of a batch


class SlowRows(Dataset):
    """Items that take time to load but no CPU core, because loading only sleeps, as if it waited for a disk.

    late: the index of an item that takes longer, and by how many seconds. No item has the index -1.
    """

    def __init__(self, count: int, seconds: float, late: tuple[int, float] = (-1, 0.0)) -> None:
        self.count, self.seconds, self.late = count, seconds, late

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        late_index, late_seconds = self.late
        time.sleep(self.seconds + (late_seconds if index == late_index else 0.0))
        return torch.ones(WIDTH)


def fixed_job(slower: float = 0.0) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    """On a rank: torch's DDP around four paced layers, an optimizer, and batches for eight steps.

    slower: by which share of its compute this rank is slower than `FORWARD` and `BACKWARD` say, as 1.5 for 2.5 times
    the seconds. `slow_job` is this job with one slow rank.
    """
    pace = {"forward_seconds": FORWARD * (1 + slower), "backward_seconds": BACKWARD * (1 + slower)}
    layers = nn.Sequential(*(PacedLinear(WIDTH, WIDTH, **pace) for _ in range(LAYERS)))
    group = dist.new_group(backend="gloo")  # without the emulated link, as in a job that does not import this course
    two_layers = 0.0316  # MiB, just below the bytes of two layers, so that each bucket closes after the second one
    model = nn.parallel.DistributedDataParallel(layers, process_group=group, bucket_cap_mb=two_layers)
    loader = DataLoader(SlowRows(ROWS * STEPS, LOADING / ROWS), batch_size=ROWS)
    dist.barrier()
    return model, torch.optim.SGD(model.parameters(), lr=1e-3), loader


def slow_job() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    """On a rank: the job of `fixed_job`, in which SLOW_RANK is slow."""
    return fixed_job(ADDED_SHARE if dist.get_rank() == SLOW_RANK else 0.0)


def parts_of_a_step(run: TraceRun) -> tuple[int, dict[int, dict[str, float]]]:
    """The number of the shortest step, and in it, for each rank, the seconds of each part such as "compute".

    All steps do the same work, so a longer step is one in which this machine was busy with something else as well. A
    `Waterfall` divides each step of each rank into parts.
    """
    waterfall = Waterfall.of(run)
    seconds = _seconds_by_step(waterfall)
    index = seconds.index(min(seconds))
    return waterfall.steps[index], {rank: table[index] for rank, table in waterfall.tables.items()}


def _seconds_by_step(waterfall: Waterfall) -> list[float]:
    """The seconds of each step on the rank where it is longest."""
    by_step = zip(*waterfall.tables.values(), strict=True)  # for each step the parts of all ranks
    return [max(sum(parts.values()) for parts in by_rank) for by_rank in by_step]


def spans_of_a_step(run: TraceRun, number: int, rank: int) -> Timeline:
    """What a rank did in one step, without the lane of the host and without naming the ranks that it waits for.

    A span's name may end in " ← rank 2", the rank that it waits for.
    """
    step = next(one for one in run.steps[rank] if one.number == number)
    inside = [
        replace(span, start=max(span.start, step.start), end=min(span.end, step.end), name=span.name.partition(" ←")[0])
        for span in run.timeline.for_rank(rank).spans
        if span.lane != "host" and span.end > step.start and span.start < step.end
    ]
    return replace(run.timeline, spans=inside, held=(), title="", source="emulated")  # held: memory, which is left out


# ---- pictures of a step ----


def opening_scene() -> Scene:
    """What a log says of each rank of `slow_job`, predicted: every step is as long as that of the slow rank."""
    step = LOADING + LAYERS * (FORWARD + BACKWARD) * (1 + ADDED_SHARE)
    row = [Part(text="", kind="data", size=LOADING), Part(text="busy", kind="other", size=step - LOADING)]
    name = "each of four ranks"
    ends = {name: f"{step * 1e3:.0f} ms, busy {1 - LOADING / step:.0%}"}  # waiting in a message counts as busy
    legend = {"data": "loading", "other": "a kernel runs"}
    return parts_scene({name: row}, ends=ends, title="What the log says about a step, predicted", legend=legend)


def own_parts_scene(parts: dict[str, float]) -> tuple[Scene, str]:
    """Draw a step as the trace of one rank shows it, in which waiting is part of an all-reduce.

    Returns the picture, and the longest part besides compute, as a choice of 10.spent.
    """
    own = {part: seconds for part, seconds in parts.items() if part != "waiting"}
    own["communication"] += parts["waiting"]
    names = {"communication": "all-reduces", "data": "loading data", "host": "Python between operators"}
    scene = waterfall_scene(own, title="A step of rank 0, by kind and not in order of time")
    return scene, names[max(names, key=own.get)]


def messages_scene(run: TraceRun, number: int, rank: int) -> tuple[Scene, str]:
    """Draw a rank's step with its messages divided into waiting and moving bytes.

    Returns the picture, and during which share of its messages bytes move, as a choice of 10.moving.
    """
    own = [message for message in run.messages if (message.rank, message.step) == (rank, number)]
    seconds = [(one.end - max(one.ready, one.last_ready), one.end - one.ready) for one in own]
    share = sum(moving for moving, _ in seconds) / sum(both for _, both in seconds)
    shown = spans_of_a_step(run, number, rank)
    captions = {"title": "The same step, emulated: compute, messages, and waiting for others"}
    captions["summary"] = f"Of all message time {share:.0%} is moving bytes."
    steps = {rank: [(shown.start, f"step {number}")]}
    scene = trace_scene(shown, start=shown.start, end=shown.end, ranks=[rank], steps=steps, **captions)
    texts = {1 / 3: "less than a third of it", 2 / 3: "about a half of it"}  # 2/3 is as far from a half as 1/3
    return scene, next((text for limit, text in texts.items() if share < limit), "nearly all of this time")


def explained(run: TraceRun, rank: int) -> str:
    """How long a rank's messages waited and moved in all steps, as the package's reader of traces divides them."""
    own = [message for message in run.messages if message.rank == rank]
    waiting = sum(max(0.0, min(one.last_ready, one.end) - one.ready) for one in own)
    moving = sum(one.end - max(one.ready, min(one.last_ready, one.end)) for one in own)
    return f"explain says {waiting:.2f} s and {moving:.2f} s"


def inside_scene(run: TraceRun, number: int) -> Scene:
    """How long each rank is inside all-reduces in one step."""
    steps = {rank: spans_of_a_step(run, number, rank).spans for rank in run.ranks}
    lanes = ("communication", "waiting")
    took = {f"rank {r}": covered_seconds(one for one in row if one.lane in lanes) for r, row in steps.items()}
    rows = {name: [Part(text="all_reduce", kind="communication", size=seconds)] for name, seconds in took.items()}
    ends = {name: f"{seconds * 1e3:.0f} ms" for name, seconds in took.items()}
    return parts_scene(rows, ends=ends, title="Inside all-reduces in this step, by rank")


def steps_scene(steps: dict[str, dict[str, float]], *, title: str) -> Scene:
    """A row for each step, cut into its parts. steps: name -> part -> seconds."""
    rows = {n: [Part(text=p, kind=PART_KINDS[p], size=size) for p, size in parts.items()] for n, parts in steps.items()}
    ends = {name: f"{sum(parts.values()) * 1e3:.0f} ms" for name, parts in steps.items()}
    return parts_scene(rows, ends=ends, title=title, legend={kind: part for part, kind in PART_KINDS.items()})


def shortened_by(before: TraceRun, after: TraceRun) -> str:
    """Say by how much a step became shorter, as a choice of 10.mended, from the shortest step of each run."""
    with_slow, without = (min(_seconds_by_step(Waterfall.of(run))) for run in (before, after))
    computed = ADDED_SHARE * LAYERS * (FORWARD + BACKWARD)  # seconds that the slow rank computes less: 0.096
    share = (with_slow - without) / computed
    # The limits lie between the choices, which are 1/4, 1/2 and all of `computed`.
    texts = {0.37: "about 24 ms", 0.7: "about 48 ms"}
    return next((text for limit, text in texts.items() if share < limit), "about 96 ms")


# ---- a hang ----


def who_meets_whom_scene() -> Scene:
    """The all-reduces of the script that skips a batch on rank 1 in step 3: the n-th of a rank meets the n-th."""
    others, rank_1 = [[f"all_reduce, step {step}" for step in steps] for steps in (range(2, 8), (2, 4, 5, 6, 7))]
    title = "Which calls meet, from step 2 on: ranks 0 and 2 (left), rank 1 (right)"
    return calls_scene((others, [*rank_1, "barrier"]), matched=[(n, n) for n in range(5)], title=title)


def hang_step(report: HangReport) -> str:
    """Say in which step the script hangs, as a choice of 10.stands: its n-th call belongs to step n - 1.

    Only step 7 is the last one of the script, so for any other step the text is none of the choices.
    """
    return f"in step {report.cause.divergence.number - 1}, the last"


def hang_text(report: HangReport) -> str:
    """In which call the ranks first call different operations, its step, and where each rank is."""
    number = report.cause.divergence.number
    text = f"In call {number}, the ranks call different operations for the first time."
    step = f"Call {number} belongs to step {number - 1} on a rank that skipped no step, because steps count from 0."
    return "\n\n".join([f"{text} {step}", *map(str, position_sentences(report.state))])


def monitored_barrier_error(absent: int, seconds: float = 1.0) -> str:
    """On a rank: the error of `monitored_barrier` when one rank does not come to it."""
    group = dist.new_group(backend="gloo")
    if dist.get_rank() == absent:
        return ""
    try:
        dist.monitored_barrier(group, timeout=timedelta(seconds=seconds), wait_all_ranks=True)
    except RuntimeError as error:
        # Without the "[Rank 0]: " before rank 0's message, and without the advice that follows on the other ranks.
        return str(error).split("]: ")[-1].split(". ")[0]
    return "all came"


# ---- the weights drift ----


def train_with_drift(steps: int = 40) -> tuple[list[float], list[float], list[str]]:
    """On a rank: train a broken job, whose replicas drift apart without an error, under a watchdog.

    Returns losses, norms of the weight of its LayerNorm, and the sentences that the watchdog reports. The job is a
    script, named patient_05 among the broken jobs, from which only the model is taken. Its `Block` shards the hidden
    units over the ranks, so that only its `norm` must be equal on all.
    """
    torch.manual_seed(dist.get_rank())
    model = runpy.run_path(str(broken_job("patient_05").path))["Block"](16, 64 // dist.get_world_size())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watchdog = Watchdog(model, optimizer, every=5, equal=lambda name: name.startswith("norm"))
    data = torch.Generator().manual_seed(0)  # one seed: ranks that shard a model see the same rows
    losses, norms, reports = [], [], []
    for _ in range(steps):
        x = torch.randn(32, 16, generator=data)
        loss = (model(x) - x.roll(1, 1)).square().mean()  # the target is x with its columns shifted by one
        optimizer.zero_grad()
        loss.backward()
        reports += watchdog.step(loss)
        optimizer.step()
        losses.append(loss.item())
        norms.append(model.norm.weight.norm().item())
    faulthandler.cancel_dump_traceback_later()  # or the watchdog would take the end of the loop for a hang
    return losses, norms, reports


def what_differs(losses_differ: bool, norms_differ: bool) -> str:
    """Say what differs between two ranks, as a choice of 10.drift."""
    if losses_differ == norms_differ:
        return "both" if losses_differ else "neither"
    return "the loss" if losses_differ else "the weights of the LayerNorm"


def drift_scene(norms: list[float], others: list[float]) -> Scene:
    """The norm of a weight on two ranks, step by step."""
    lines = {"rank 0": list(enumerate(norms, 1)), "rank 1": list(enumerate(others, 1))}
    axes = {"x": Axis(name="step", ticks=(1, 10, 20, 30, 40)), "y": Axis(name="norm", ticks=(3.8, 4, 4.2, 4.4, 4.6))}
    return curves_scene(lines, **axes, title="The norm of a weight that must be the same on both ranks")


# ---- variables of the environment, and the loader ----


def interface_changed_after_init(name: str) -> list[str]:
    """On a rank: set gloo's variable to the interface `name` after a group was made.

    Returns what this group does then, and what a new group does: "runs", or the message of an error.
    """
    # Every rank has the variable: whoever starts it sets it to the loopback interface (ranks/processes/spec.py).
    before, group, outcomes = os.environ["GLOO_SOCKET_IFNAME"], dist.new_group(backend="gloo"), []
    os.environ["GLOO_SOCKET_IFNAME"] = name
    try:
        for call in (lambda: dist.all_reduce(torch.ones(1), group=group), lambda: dist.new_group(backend="gloo")):
            try:
                call()
                outcomes.append("runs")
            except RuntimeError as error:
                outcomes.append(str(error).rsplit("] ", 1)[-1])  # without gloo's file and line before it
    finally:
        os.environ["GLOO_SOCKET_IFNAME"] = before
    return outcomes


def loading_seconds(num_workers: int, steps: int = 8) -> float:
    """Median seconds of a step that computes 20 ms on a batch of 10 items that take 4 ms each to load."""
    # Four steps more are run and not counted, in which the workers start.
    return statistics.median(_steps(SlowRows(ITEMS * (steps + 4), ITEM_SECONDS), num_workers=num_workers)[-steps:])


def late_step_seconds(prefetch_factor: int, late: float = 0.25, batch: int = 24) -> float:
    """Seconds of the step in whose batch one item takes `late` seconds longer, with two workers and 20 ms per batch.

    batch: the index of that batch.
    """
    # With half the usual time per item, two workers load faster than a step computes, so their queues are full.
    rows = SlowRows(ITEMS * (batch + 2), ITEM_SECONDS / 2, (ITEMS * batch, late))
    return _steps(rows, num_workers=2, prefetch_factor=prefetch_factor)[batch - 1]  # `_steps` leaves out the first


def which_queue_hides(short: float, long: float) -> str:
    """Say which queue hides a late batch, as a choice of 10.prefetch. short, long: seconds of the step with each."""
    # The step takes 0.02 s if all of the delay of 0.25 s is hidden. Below 0.13 s it waits for less than half of it.
    hides = [seconds < 0.13 for seconds in (short, long)]
    return "both" if all(hides) else "only the long one" if hides[1] else "neither"


def loading_scene(seconds: dict[str, float], *, title: str) -> Scene:
    """A row for each way to load, with the seconds of a step."""
    rows = {name: [Part(text="", kind="data", size=size)] for name, size in seconds.items()}
    return parts_scene(rows, ends={name: f"{size * 1e3:.0f} ms" for name, size in seconds.items()}, title=title)


def _steps(rows: SlowRows, **options: int) -> list[float]:
    """Seconds of each step but the first: loading, or waiting for the loader's workers, and 20 ms of compute."""
    start, seconds = None, []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # these workers wait, and need no core
        for _ in DataLoader(rows, ITEMS, **options):
            paced(lambda: None, STEP_SECONDS)
            now = time.perf_counter()
            seconds += [now - start] if start else []
            start = now
    return seconds


# ---- bucket sizes and overlap: 16 paced layers under DDP on a slow emulated link ----

TUNING_LINK = Link(latency=5e-3, bandwidth=12.5e6)  # seconds, and bytes per second
NUM_TUNED_LAYERS, TUNED_WIDTH, TUNED_FORWARD, TUNED_BACKWARD = 16, 128, 0.004, 0.015  # seconds of a layer
LAYER_BYTES = 4 * TUNED_WIDTH * (TUNED_WIDTH + 1)  # fp32 weight and bias


class PacedStack(nn.Module):
    """16 paced layers. in_order: whether they are registered in the order in which forward calls them."""

    def __init__(self, in_order: bool = True) -> None:
        super().__init__()
        pace = {"forward_seconds": TUNED_FORWARD, "backward_seconds": TUNED_BACKWARD}
        self.layers = nn.ModuleList(PacedLinear(TUNED_WIDTH, TUNED_WIDTH, **pace) for _ in range(NUM_TUNED_LAYERS))
        self.in_order = in_order

    def forward(self, x: Tensor) -> Tensor:  # (B, TUNED_WIDTH) to the same
        for layer in self.layers if self.in_order else reversed(self.layers):
            x = layer(x)
        return x


def bucket_cap_mb(num_layers: int) -> float:
    """The bucket_cap_mb, in MiB, that closes a bucket after so many layers, whether a weight or a bias comes last.

    DDP closes a bucket once its size reaches the cap. A bias has 4 bytes for each of TUNED_WIDTH elements, so the cap
    lies half of that below the size of the layers.
    """
    return (num_layers * LAYER_BYTES - 2 * TUNED_WIDTH) / 2**20


def predicted_step_seconds(num_layers: int, strategy: str = "overlapped") -> float:
    """Predicted seconds of a step whose buckets hold so many layers.

    strategy: "overlapped", or as in `simulate_ddp_step`.
    """
    n = NUM_TUNED_LAYERS
    names = tuple(f"layer {number}" for number in reversed(range(n)))
    sizes, seconds = (LAYER_BYTES,) * n, (TUNED_BACKWARD,) * n
    backward = BackwardPass(names=names, num_bytes=sizes, seconds=seconds, forward_seconds=n * TUNED_FORWARD)
    caps = {"bucket_cap_mb": bucket_cap_mb(num_layers), "first_bucket_mb": bucket_cap_mb(num_layers)}
    return simulate_ddp_step(backward, link=TUNING_LINK, world_size=4, strategy=strategy, **caps).duration


def step_seconds(model: nn.Module, steps: int) -> list[float]:
    """On a rank: the seconds of each step, from a barrier to the end of backward."""

    def step() -> None:
        model.zero_grad()
        model(torch.ones(2, TUNED_WIDTH)).sum().backward()

    return seconds_of_steps(step, steps)


def step_seconds_of_torch_ddp(num_layers: int) -> list[float]:
    """On a rank: the seconds of three steps of PyTorch's DDP, whose buckets hold so many layers."""
    return step_seconds(nn.parallel.DistributedDataParallel(PacedStack(), bucket_cap_mb=bucket_cap_mb(num_layers)), 3)


def step_seconds_of_our_ddp(num_layers: int, *, overlap: bool = True, in_order: bool = True) -> list[float]:
    """On a rank: the seconds of three steps of our DDP. in_order: as of `PacedStack`."""
    caps = {"bucket_cap_mb": bucket_cap_mb(num_layers), "first_bucket_mb": bucket_cap_mb(num_layers)}
    return step_seconds(DistributedDataParallel(PacedStack(in_order), overlap=overlap, **caps), 3)


def buckets_scene(ranks: Ranks) -> tuple[Scene, str, str]:
    """Draw the seconds of a step by layers per bucket.

    Returns the picture, and the best of 1, 2, 4 and 16 layers, as predicted and as emulated, as choices of 10.bucket.
    """
    sizes, emulated = (1, 2, 4, 8, 16), {}
    for size in (1, 2, 4, 16):
        # For each step the seconds of all ranks, without the first step, after which DDP rebuilds its buckets.
        _, *later = zip(*ranks.run(step_seconds_of_torch_ddp, size), strict=True)
        # A step lasts until its slowest rank ends. Of the steps, the one that the machine disturbed least counts.
        emulated[size] = min(max(by_rank) for by_rank in later)
    curves = {"predicted": [(size, predicted_step_seconds(size) * 1e3) for size in sizes]}
    curves["emulated"] = [(size, seconds * 1e3) for size, seconds in emulated.items()]
    x = Axis(name="layers per bucket", ticks=sizes, log=True)
    y = Axis(name="ms per step", ticks=(0, 200, 400, 600, 800))
    scene = curves_scene(curves, x=x, y=y, dots=True, title="Time of a step, by the size of its buckets")
    names = {size: f"{size} layer{'s' * (size > 1)}, {16 // size} message{'s' * (size < 16)}" for size in emulated}
    return scene, names[min(emulated, key=predicted_step_seconds)], names[min(emulated, key=emulated.get)]


def registration_order_scene(ranks: Ranks) -> tuple[Scene, str]:
    """Draw steps without overlap, and with layers registered in the wrong and in the right order.

    Returns the picture, and which steps the wrong order slows down, as a choice of 10.order. DDP fills
    its buckets in the reverse order of registration, and learns the real order in the first step.
    """

    def slowest_ms(**options: bool) -> list[float]:
        by_rank = ranks.run(step_seconds_of_our_ddp, 4, **options)
        return [max(seconds) * 1e3 for seconds in zip(*by_rank, strict=True)]

    off, wrong, right = slowest_ms(overlap=False), slowest_ms(in_order=False), slowest_ms()
    ms = {"no overlap": min(off), "wrong order, step 1": wrong[0], "wrong order, step 2": min(wrong[1:])}
    ms["right order"] = min(right[1:])
    rows = {name: [Part(text="", kind="communication", size=size)] for name, size in ms.items()}
    ends = {name: f"{size:.0f} ms" for name, size in ms.items()}
    limit = (ms["no overlap"] + ms["right order"]) / 2  # a step that takes longer than halfway hides too little
    scene = parts_scene(rows, ends=ends, title="A step with four layers per bucket, emulated")
    names = {(False, False): "none", (True, False): "only the first", (True, True): "all of them"}
    return scene, names[tuple(ms[f"wrong order, step {step}"] > limit for step in (1, 2))]
