"""Composing, measured: Trainer beside the same strategies wired by hand and beside torch's own; what 8 ranks take.

    python -m benchmarks.compose [by_hand | by_torch | size] [pairs]

Times are of whole steps on plain gloo groups, two sides in turn in the same processes; a step takes as long as its
slowest rank. CPU seconds are those of all ranks together: what others do on the machine moves them less. By hand means:
no Trainer, the same calls for one plan; torch's side, unlike ours, computes no norm. The machine's load, of one minute,
stands in each row.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import device_mesh, distributed_c10d

from benchmarks.paired import ratio_of, write_table
from benchmarks.ranks import script
from helpers.chapters.torch_trainer import TorchTrainer
from helpers.compose import Plan, Trainer
from helpers.compose.axes import Axes
from helpers.compose.forward_backward import mean_over_ranks, schedule_of
from helpers.parallel.pipeline import PipelineStage
from helpers.parallel.tensor_parallel import shard_tensor_parallel, vocab_parallel_cross_entropy
from helpers.parallel.zero import Zero1
from helpers.ranks import Ranks
from helpers.ranks.live import proportional_bytes
from helpers.workloads import GPT, GPTConfig, token_loss

CONFIG = GPTConfig(vocab_size=256, context=64, num_layers=4, num_heads=4, hidden=128, tied=False)
ROWS, PAIRS, REMADE, WARMUP, LR = 16, 32, 4, 2, 1e-3
ADAMW = partial(torch.optim.AdamW, lr=LR, foreach=False)  # for loop, as DTensors need it: the same on all sides
COLUMNS = ("what", "case", "measured", "seconds of each", "goal", "load")
START = """
import time; start = time.perf_counter()
from helpers.ranks import Ranks
ranks = Ranks(8, device="cpu", quiet=True)
ranks.cell("x = torch.ones(1000); dist.all_reduce(x)")
print(time.perf_counter() - start)
"""
BY_HAND = (
    Plan(dp=2, tp=2, zero=1),
    Plan(dp=2, pp=2, num_microbatches=4),
    Plan(pp=2, tp=2, num_microbatches=4),
)
BY_TORCH = (Plan(dp=2, tp=2, zero=3), *BY_HAND[1:])


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG)


def with_trainer(plan: Plan) -> Callable:
    return Trainer(gpt(), plan, loss=token_loss, optimizer=torch.optim.AdamW, lr=LR, foreach=False).step


def with_torch(plan: Plan) -> Callable:
    return TorchTrainer(gpt(), plan, lr=LR).step


def by_hand(plan: Plan) -> Callable:
    """One plan's calls in a row. Like Trainer's, its step gives the batch's mean loss and computes the norm."""
    axes, model = Axes(plan.mesh), gpt()
    dp, tp, pp = (axes.group(axis) for axis in ("dp", "tp", "pp"))
    if plan.tp > 1:
        shard_tensor_parallel(model, tp)
    loss_of = partial(vocab_parallel_cross_entropy if plan.tp > 1 else token_loss, reduction="sum")
    loss_of = partial(loss_of, group=tp) if plan.tp > 1 else loss_of
    if plan.pp > 1:
        return pipeline_by_hand(plan, model, loss_of, axes, dp, pp)
    return zero1_by_hand(plan, model, loss_of, axes, dp)


def zero1_by_hand(plan: Plan, model: nn.Module, loss_of: Callable, axes: Axes, dp) -> Callable:
    optimizer = Zero1(model.named_parameters(), torch.optim.AdamW, dp, lr=LR, foreach=False)

    def step(x: Tensor, y: Tensor) -> Tensor:
        own_x, own_y = (each.chunk(plan.dp)[axes.coordinates["dp"]] for each in (x, y))
        optimizer.zero_grad()
        loss = loss_of(model(own_x), own_y) / (y.numel() / plan.dp)
        loss.backward()
        optimizer.clip_grad_norm_(torch.inf)
        optimizer.step()
        return mean_over_ranks(loss, dp, plan.dp)

    return step


def pipeline_by_hand(plan: Plan, model: nn.Module, loss_of: Callable, axes: Axes, dp, pp) -> Callable:
    stage = PipelineStage(model, pp, schedule_of(plan), loss=loss_of, dp_group=dp)
    optimizer, both = ADAMW(stage.parameters()), axes.group("dp", "pp")

    def step(x: Tensor, y: Tensor) -> Tensor:
        own_x, own_y = (each.chunk(plan.dp)[axes.coordinates["dp"]] for each in (x, y))
        optimizer.zero_grad()
        m = plan.num_microbatches
        loss = stage.step_on(own_x.chunk(m), own_y.chunk(m), total=y.numel() / plan.dp)
        stage.clip_grad_norm_(torch.inf)
        optimizer.step()
        return mean_over_ranks(torch.zeros(()) if loss is None else loss, both, plan.dp)

    return step


def on_plain_gloo() -> None:
    """On a rank: groups that are made from now on have no wire, whoever makes them."""
    dist.new_group = device_mesh.new_group = partial(distributed_c10d.new_group, backend="gloo")


def pairs_on_rank(plan: Plan, makes: tuple[Callable, Callable], num_pairs: int) -> list[list[tuple[float, float]]]:
    """(seconds, CPU seconds) of a step of either side; every second pair runs the other side first.

    Of two equal sides the one that was made first may be faster by several percent, so they are made anew, in turn.
    """
    on_plain_gloo()
    timed, data = [], torch.randint(0, 256, (ROWS, CONFIG.context + 1))
    for time_made in range(REMADE):
        orders = ((0, 1), (1, 0)) if time_made % 2 == 0 else ((1, 0), (0, 1))
        steps = {side: makes[side](plan) for side in orders[0]}
        for index in range(WARMUP + num_pairs // REMADE):
            took = {side: one_step(steps[side], data) for side in orders[index % 2]}
            timed += [[took[0], took[1]]] if index >= WARMUP else []
    return timed


def one_step(step: Callable, data: Tensor) -> tuple[float, float]:
    dist.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    step(data[:, :-1], data[:, 1:])
    return time.perf_counter() - start, time.process_time() - cpu


def ratio_rows(what: str, plans: tuple[Plan, ...], other: Callable, goal: str, num_pairs: int):
    for plan in plans:
        with Ranks(4, device="cpu", quiet=True, timeout=300) as ranks:  # new ones: groups of the last are gone
            by_rank = ranks.run(pairs_on_rank, plan, (with_trainer, other), num_pairs)
        for kind, over_ranks, goal_of in ((0, max, goal), (1, sum, "reported")):
            ranks_of = list(zip(*by_rank, strict=True))  # pair by pair, each rank's
            sides = [[over_ranks(took[side][kind] for took in pair) for pair in ranks_of] for side in (0, 1)]
            ratio = ratio_of(*sides)
            times = f"{ratio.a_seconds * 1e3:.0f} and {ratio.b_seconds * 1e3:.0f} ms"
            yield f"{('step', 'CPU time of a step')[kind]}, {what}", said(plan), ratio, times, goal_of


def said(plan: Plan) -> str:
    axes = " ".join(f"{axis}={getattr(plan, axis)}" for axis in ("dp", "pp", "tp") if getattr(plan, axis) > 1)
    return f"{axes} zero={plan.zero} m={plan.num_microbatches}, GPT 0.9 M"


def train_on_rank(plan: Plan) -> None:
    data = torch.randint(0, 256, (ROWS, CONFIG.context + 1))
    with_trainer(plan)(data[:, :-1], data[:, 1:])


def size_rows(repeats: int):
    seconds = [float(script(START)) for _ in range(repeats)]
    measured = f"{statistics.median(seconds):.1f} s (best {min(seconds):.1f} s)"
    yield f"nothing to first all-reduce (median of {repeats})", "8 ranks", measured, "", "5 s, aim 4 s"
    plan = Plan(dp=2, pp=2, tp=2, zero=1, num_microbatches=4, sequence_parallel=True)
    with Ranks(8, device="cpu", quiet=True, timeout=300) as ranks:
        ranks.run(train_on_rank, plan)
        total, kernel = sum(proportional_bytes(pid) for pid in ranks.pids), proportional_bytes(os.getpid())
    measured = f"{total / 1e9:.2f} GB (with this kernel {(total + kernel) / 1e9:.2f} GB)"
    yield "PSS of all ranks after a training step", f"8 ranks, {said(plan)}", measured, "", "1 GB, aim 0.8 GB"


PARTS = {
    "by_hand": partial(ratio_rows, "Trainer / by hand", BY_HAND, by_hand, "upper 1.10, aim 1.03"),
    "by_torch": partial(ratio_rows, "Trainer / torch's own parts", BY_TORCH, with_torch, "aim 0.80"),
    "size": lambda num_pairs: size_rows(min(num_pairs, 3)),
}


def main(wished: str = "", num_pairs: str = str(PAIRS)) -> None:
    for name in [wished] if wished else PARTS:
        rows = []
        for row in PARTS[name](int(num_pairs)):
            load = f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
            rows.append(dict(zip(COLUMNS, (*row, load), strict=True)))
            print(rows[-1], flush=True)
        print(write_table(f"compose_{name}", rows, f"python -m benchmarks.compose {name} {num_pairs}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
