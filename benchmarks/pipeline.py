"""The pipeline: our runtime beside torch's, emulated bubbles beside simulated ones, memory, and the simulator's speed.

    python -m benchmarks.pipeline

Times are of whole steps (forward, backward and SGD) on a plain gloo group, ours and torch.distributed.pipelining's in
turn in the same processes. Bubbles are of real ranks with modelled durations ("emulated"), never speed.
"""

from __future__ import annotations

import statistics
import time
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

from benchmarks.paired import ratio_of, write_table
from helpers.observe.emulate import emulate_pipeline_step
from helpers.observe.memory import record_memory
from helpers.parallel.pipeline import PipelineStage
from helpers.parallel.pipeline.partition import partition
from helpers.predict.time.pipeline import simulate
from helpers.ranks import Ranks
from helpers.schedules import gpipe, interleaved, one_f_one_b, zb_h1, zb_h2

WIDTH, LAYERS, ROWS, MICROBATCHES = 768, 8, 256, 8
PAIRS, WARMUP = 25, 3
TORCHS = {"gpipe": pipelining.ScheduleGPipe, "one_f_one_b": pipelining.Schedule1F1B}
TIMES = dict(forward=0.010, backward_input=0.010, backward_weight=0.010, send=0.0005)
COLUMNS = ("what", "case", "measured", "predicted or torch's", "goal")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)])


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)


def our_step(schedule, group):
    stage = PipelineStage(model(), group, schedule, loss=nn.functional.mse_loss)
    x, y = batch()
    return lambda: stage.step(x, y), list(stage.parameters())


def torchs_step(schedule, group):
    rank, last = dist.get_rank(), schedule.num_stages - 1
    piece = partition(model(), schedule.num_stages)[rank]
    stage = pipelining.PipelineStage(piece, rank, schedule.num_stages, torch.device("cpu"), group=group)
    runtime = TORCHS[schedule.name](stage, schedule.num_microbatches, loss_fn=nn.functional.mse_loss)
    x, y = batch()
    given = {0: ((x,), {}), last: ((), {"target": y})}.get(rank, ((), {}))
    return lambda: runtime.step(*given[0], **given[1]), list(piece.parameters())


def pairs_on_rank(schedule) -> list[tuple[float, float]]:
    """Seconds of (ours, torch's) in interleaved steps; every second pair runs torch's first."""
    group = dist.new_group(backend="gloo")
    sides = []
    for make in (our_step, torchs_step):
        step, parameters = make(schedule, group)
        sides.append((step, torch.optim.SGD(parameters, lr=1e-3)))
    timed = []
    for index in range(WARMUP + PAIRS):
        order = (0, 1) if index % 2 == 0 else (1, 0)
        seconds = {side: one_step(*sides[side]) for side in order}
        timed.append((seconds[0], seconds[1]))
    return timed[WARMUP:]


def one_step(step, optimizer) -> float:
    dist.barrier()
    start = time.perf_counter()
    optimizer.zero_grad()
    step()
    optimizer.step()
    return time.perf_counter() - start


def speed_rows():
    for num_ranks in (2, 4):
        with Ranks(num_ranks, device="cpu", quiet=True) as ranks:
            for make in (gpipe, one_f_one_b):
                schedule = make(num_ranks, MICROBATCHES)
                by_rank = ranks.run(pairs_on_rank, schedule)
                slowest = [tuple(map(max, zip(*pair, strict=True))) for pair in zip(*by_rank, strict=True)]
                ratio = ratio_of(*zip(*slowest, strict=True))
                theirs = f"{ratio.b_seconds * 1e3:.0f} ms a step"
                yield "our runtime / torch's", f"{schedule.name}, {num_ranks} ranks", ratio, theirs, "1.00, upper 1.05"


def bubble_rows():
    for schedule in (gpipe(4, 8), one_f_one_b(4, 8), interleaved(8, 8, 2), zb_h1(4, 8), zb_h2(4, 8)):
        predicted = simulate(schedule, **TIMES).bubble_fraction
        emulated = statistics.median(emulate_pipeline_step(schedule, **TIMES).bubble_fraction for _ in range(3))
        case = f"{schedule.name}, 4 ranks, m = 8"
        yield "bubble, emulated", case, f"{emulated:.1%}", f"{predicted:.1%}", "within 3 points"


def peak_activations(schedule) -> int:
    """The most bytes of activations that this rank holds in a step, without the batch itself."""
    stage = PipelineStage(model(), None, schedule, loss=nn.functional.mse_loss)
    x, y = batch()
    given = {0: (x, None), schedule.num_stages - 1: (None, y)}.get(dist.get_rank(), (None, None))
    stage.step(*given)
    with record_memory(stage) as recorder:
        stage.step(*given)
    own = [t.nbytes for t in given if t is not None]
    held = [h for h in recorder.timeline().held if h.kind == "activations" and h.num_bytes not in own]
    changes = sorted([(h.start, h.num_bytes) for h in held] + [(h.end, -h.num_bytes) for h in held])
    return max(accumulate(change for _, change in changes))


def memory_rows():
    with Ranks(4, device="cpu", quiet=True) as ranks:
        peaks = {make.__name__: ranks.run(peak_activations, make(4, 16))[0] for make in (gpipe, one_f_one_b)}
    ours, least = peaks["gpipe"] / 1e6, peaks["one_f_one_b"] / 1e6
    ratio = f"{ours:.2f} / {least:.2f} MB = {ours / least:.2f}"
    yield "peak activations, GPipe / 1F1B", "rank 0 of 4, m = 16", ratio, "16 / 4 = 4", "m against p micro-batches"


def simulator_rows():
    for schedule in (one_f_one_b(64, 1024), interleaved(256, 1024, 4)):
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            timeline = simulate(schedule, **TIMES)
            seconds.append(time.perf_counter() - start)
        case = f"{schedule.name}, 64 ranks, m = 1024, {len(timeline.spans):,} actions"
        yield "simulate", case, f"{statistics.median(seconds):.2f} s", "", "2 s"


def main() -> None:
    rows = []
    for part in (simulator_rows, bubble_rows, memory_rows, speed_rows):
        for row in part():
            rows.append(dict(zip(COLUMNS, row, strict=True)))
            print(rows[-1], flush=True)
    print(write_table("pipeline", rows, "python -m benchmarks.pipeline"))


if __name__ == "__main__":
    main()
