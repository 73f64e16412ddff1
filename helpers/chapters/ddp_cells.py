"""Computes what the cells of chapter 03 reveal: the value beside the learner's guess, and a picture or lines of text.

Where a docstring names a guess, such as guess `03.weights`, the first value is one of its choices, word for word.
`reveal` in the notebook compares it with the declared answer. Where the run does not find that answer, the function
returns a wrong choice (helpers/chapters/__init__.py has the rule).

`ranks` is the chapter's pool of four processes. ddp.py has the functions that run in them. `predicted`, `emulated` and
`measured` say where a value comes from: from a model; from real ranks whose layers and messages sleep as long as a
model says; or from a count or a clock.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from helpers.chapters import ddp
from helpers.chapters.start_here import failure_of
from helpers.commands.rehearse import rehearse
from helpers.draw import Axis, Scene, buckets_scene, curves_scene, hang_scene, payloads_scene, timeline_scene
from helpers.observe.emulate import emulate_ddp_strategies
from helpers.observe.equality import Tensors
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.shared.bucket_rule import MIB, split_into_buckets
from helpers.predict.time.data_parallel import simulate_ddp_step
from helpers.quantities import costs
from helpers.ranks import Ranks
from helpers.records import Span, Timeline
from helpers.specs import Link
from helpers.workloads import GPT, GPTConfig, train_ddp

Packed = list[list[tuple[str, int]]]  # buckets of (name, bytes) of gradients
Steps = dict[str, Timeline]  # one training step for each way to send gradients
WAYS = {  # the choices of 03.second-fastest; `ddp.sixteen_gradients` fill 5 buckets of 2 MiB
    "naive": "naive: 16 messages, after backward",
    "flat": "flat: one message, after backward",
    "bucketed": "bucketed: 5 buckets, after backward",
    "overlapped": "overlapped: 5 buckets, during backward",
}


# ---- sections A to D of the notebook ----


def opening_scene() -> Scene:
    """Draw one predicted step on one of four ranks, which averages its gradients once, after backward, at 100 MB/s."""
    link = Link(latency=1e-3, bandwidth=100e6)
    step = simulate_ddp_step(ddp.sixteen_gradients(), link=link, world_size=4, strategy="flat")
    title = "One step on one of four ranks: 16 gradients (green), and their average at 100 MB/s (the long bar)"
    return timeline_scene(replace(step.for_rank(0), title=""), title=title)


def weights_or_gradients(
    ranks: Ranks, alone: Tensors, wrap: Callable, average_weights: Callable[[nn.Module], None]
) -> tuple[str, str]:
    """Find when averaged weights give the weights that one process gives, for guess `03.weights`; a line for each way.

    The expected outcome is: averaged gradients equal, averaged weights with SGD equal, with AdamW different. With any
    other outcome the choice is "never". alone: `ddp.train()`. wrap: averages gradients. average_weights: averages the
    weights of a model after a step.
    """
    lines = [f"averaged gradients, AdamW: {ddp.equality_line(alone, ranks.run(ddp.train, wrap))}"]
    lines += ddp.averaged_weights(ranks, average_weights)
    is_only_sgd = [": equal" in line for line in lines] == [True, True, False]
    return "with SGD, not with AdamW" if is_only_sgd else "never", "\n\n".join(lines)


def packed_gpt() -> Packed:
    """Pack the 100 gradients of `GPTConfig.ten_million` by PyTorch's rule. Guess `03.messages` asks how many buckets.

    The names stand in the order of backward. The model has 10,698,240 parameters, which are 42.8 MB in fp32.
    """
    with torch.device("meta"):  # shapes only: nothing is allocated
        named = [(name, 4 * p.numel()) for name, p in GPT(GPTConfig.ten_million()).named_parameters()][::-1]
    return [[named[place] for place in bucket] for bucket in split_into_buckets([size for _, size in named])]


def packed_scene(packed: Packed) -> Scene:
    """Draw these buckets, as wide as their bytes."""
    title = f"{sum(map(len, packed))} gradients in their buckets, as wide as their bytes"
    return buckets_scene(packed, cap=25 * MIB, first_cap=MIB, title=title)


def sleeping_hooks(pause: float = 0.05) -> tuple[str, str]:
    """Find what backward does while the hooks of an MLP sleep, for guess `03.sleeping-hooks`.

    pause: the seconds of the sleep. Returns also a line with all hooks in their order and their thread.
    """
    fired = ddp.hooks_fired(pause)
    threads = ", ".join(sorted({thread for _, thread, _ in fired}))
    starts = [start for _, _, start in fired]
    has_waited = all(after - before >= pause for before, after in pairwise(starts))
    said = "it waits until the hook has returned" if has_waited else "it computes the next gradients"
    order = " → ".join(name for name, _, _ in fired)
    return said, f"{order}, in {threads}, at least {pause * 1e3:.0f} ms apart" if has_waited else order


def step_in_four_ways(speed: float) -> tuple[Steps, Steps]:
    """Run the opening's step in four ways at `speed` MB/s: predicted, and emulated on four ranks with paced compute."""
    link = Link(latency=1e-3, bandwidth=speed * 1e6)
    return emulate_ddp_strategies(ddp.sixteen_gradients(), link=link, bucket_cap_mb=2)


def fastest_first(steps: Steps) -> list[str]:
    """Sort the four ways, the choices of guess `03.second-fastest`, by their step, the shortest first."""
    return [WAYS[name] for name in _names_fastest_first(steps)]


def _names_fastest_first(steps: Steps) -> list[str]:
    return sorted(WAYS, key=lambda name: steps[name].duration)


def ways_scene(predicted: Steps, emulated: Steps) -> Scene:
    """Draw the predicted steps at 400 MB/s, the fastest first, with the emulated durations in brackets."""
    shown = [
        replace(predicted[name].for_rank(0), title=f"{name} ({emulated[name].duration * 1e3:.0f} ms)")
        for name in _names_fastest_first(predicted)
    ]
    return timeline_scene(*shown, title="One step at 400 MB/s, predicted (in brackets: emulated)")


def naive_and_overlapped_here(ranks: Ranks, emulated: Steps) -> str:
    """Say how much longer naive takes than overlapped, emulated, and measured on this machine without any pacing.

    The MLP of 21 million parameters is `ddp.SIX_LAYERS`.
    """
    times = emulated["naive"].duration / emulated["overlapped"].duration
    seconds = ranks[:2].run(ddp.seconds_of_naive_and_overlapped)
    naive, overlapped = (max(by_rank) for by_rank in zip(*seconds, strict=True))
    return (
        f"Naive takes {times:.2f} times as long as overlapped, emulated at 400 MB/s. Measured on this machine, where "
        f"nothing is paced and two ranks train an MLP of 21 million parameters, it takes {naive / overlapped:.2f} "
        f"times as long: {naive * 1e3:.0f} ms against {overlapped * 1e3:.0f} ms. Here a message goes through "
        "memory, so it has hardly any latency, and while a core copies it, this core cannot compute."
    )


def accumulation(ranks: Ranks) -> tuple[str, Scene, str]:
    """Find what four of four micro-batches under no_sync do, for guess `03.quiet`.

    Returns also a picture of the messages with 0, 3 and 4 micro-batches under no_sync, and a text about the gradients.
    """
    runs = {number: ranks.run(ddp.accumulate, number) for number in (0, 3, 4)}
    sent = {f"{number} under no_sync": run[0][0] for number, run in runs.items()}
    # Compared with a step that sends after every micro-batch.
    same, lost = (ddp.equality_line(runs[0][0][1], [state for _, state in runs[number]]) for number in (3, 4))
    is_silent = not runs[4][0][0] and lost.startswith("not equal")
    said = "no error, and every rank trains alone" if is_silent else "no error, and one large message at the step"
    scene = payloads_scene(sent, title="Payload of each rank's all-reduces in a step of four micro-batches")
    return said, scene, f"Gradients compared with 0 under no_sync. 3: {same}. 4: {lost}."


# ---- sections E and F of the notebook ----


def batch_norm_differences(ranks: Ranks) -> tuple[str, str]:
    """Find what differs from one process under DDP with BatchNorm, for guess `03.statistics`.

    "only the gradients" is no choice there, so it does not match. Returns also two lines each for BatchNorm and
    SyncBatchNorm.
    """
    alone = ddp.batch_norm_gradients()
    results, synced = (ranks.run(ddp.batch_norm_gradients, synced=one) for one in (False, True))
    said = {
        (False, False): "nothing, because DDP averages the gradients",
        (True, False): "only the running statistics",
        (True, True): "the running statistics and the gradients",
    }
    found = [_line_of_part(alone, results, part) for part in (".running_", ".grad")]
    differ = tuple(line.startswith("not") for line in found)
    lines = [
        f"{layer}, {what}: {_line_of_part(alone, states, part)}"
        for layer, states in (("BatchNorm", results), ("SyncBatchNorm", synced))
        for what, part in (("running statistics", ".running_"), ("gradients", ".grad"))
    ]
    return said.get(differ, "only the gradients"), "\n\n".join(lines)


def _line_of_part(alone: Tensors, results: Sequence[Tensors], part: str) -> str:
    """Say whether the tensors with `part` in their name equal the ones of one process, as `ddp.equality_line` does."""
    alone, *results = [{name: state[name] for name in state if part in name} for state in (alone, *results)]
    return ddp.equality_line(alone, results)


def first_messages(ranks: Ranks, theirs: Callable[[nn.Module], nn.Module]) -> tuple[int, Scene]:
    """Count the messages that PyTorch's DDP sends in two steps, for guess `03.two-steps`, and draw those of each step.

    The picture has this course's DDP, too. theirs: wraps a model in PyTorch's DDP.
    """
    ours_sent, theirs_sent = (ranks.run(ddp.message_sizes, wrap)[0] for wrap in (DistributedDataParallel, theirs))
    logs = {"this course's": ours_sent, "PyTorch's": theirs_sent}
    rows = {f"{who}, step {step + 1}": log[step] for step in (0, 1) for who, log in logs.items()}
    scene = payloads_scene(rows, title="Messages of the first two steps, as long as their bytes")
    return sum(len(step) for step in theirs_sent), scene


def bytes_by_packing(ranks: Ranks, packed: Packed) -> tuple[str, str]:
    """Find which way of packing makes a rank send most, for guess `03.bytes`: counted on the ring of chapter 01.

    Where one way sends more, its name with the counts is none of the choices. Returns also what a rank sends in each.
    """
    buckets = [sum(size for _, size in bucket) for bucket in packed]
    single = [size for bucket in packed for _, size in bucket]
    ways = {f"{len(single)} messages": single, f"{len(buckets)} buckets": buckets, "one message": [sum(single)]}
    counted = {name: ranks.run(ddp.sent_by_rings, sizes)[0] for name, sizes in ways.items()}
    said = "all of them the same" if len(set(counted.values())) == 1 else max(counted, key=counted.get)
    return said, "Sent by each rank. " + ", ".join(f"{name}: {size / 1e6:.1f} MB" for name, size in counted.items())


def ring_times(packed: Packed) -> Scene:
    """Draw the milliseconds of a ring on four ranks without latency, over the network's speed, next to a backward.

    The backward of 70 ms is an example that the chapter's text chooses.
    """
    num_bytes, speeds = sum(size for bucket in packed for _, size in bucket), (1, 10, 100, 1000)
    links = [Link(latency=0, bandwidth=speed * 1e9 / 8) for speed in speeds]
    taken = [1e3 * costs.seconds("all_reduce", num_bytes, 4, link, "ring") for link in links]
    reduced = list(zip(speeds, taken, strict=True))
    return curves_scene(
        {"all-reduce": reduced, "backward, 70 ms": [(speeds[0], 70), (speeds[-1], 70)]},
        x=Axis(name="Gb/s", ticks=speeds, log=True),
        y=Axis(name="ms", ticks=(0.1, 1, 10, 100, 1000), log=True),
        marks=[(*reduced[1], f"{reduced[1][1]:.1f} ms at 10 Gb/s")],
        title=f"{num_bytes / 1e6:.1f} MB, four ranks: where the all-reduce is below the backward, it can hide",
    )


def one_and_two_ranks_here(ranks: Ranks) -> str:
    """Say how much longer two ranks take than one on this machine, for the same 32 examples.

    The 19 MB are the gradients of the MLP of 4.7 million parameters in `ddp.step_seconds`.
    """
    one, two = ranks[:1].run(ddp.step_seconds, 32)[0], max(ranks[:2].run(ddp.step_seconds, 32))
    return (
        f"On this machine two ranks take {two / one:.1f} times as long as one for the same 32 examples, with 19 MB of "
        "gradients."
    )


def gains_on_three_links(known: dict[int, tuple[Steps, Steps]]) -> tuple[str, str, Scene]:
    """Find on which link overlap saves most, for guess `03.gain`: predicted and emulated. Draw the steps, too.

    known: results of `step_in_four_ways` by speed in MB/s, so that they need not run again.
    """
    links = {speed: known.get(speed) or step_in_four_ways(speed) for speed in (40, 100, 400)}
    predicted = {speed: steps for speed, (steps, _) in links.items()}
    emulated = {speed: steps for speed, (_, steps) in links.items()}
    gains, gains_emulated = ({speed: _gain(steps) for speed, steps in runs.items()} for runs in (predicted, emulated))
    shown = [
        replace(steps["overlapped"].for_rank(0), title=f"{speed} MB/s: {gains[speed]:.0%} shorter")
        for speed, steps in predicted.items()
    ]
    ends = [(steps["bucketed"].duration, "bucketed") for steps in predicted.values()]
    title = "Overlapped, on three links; bucketed ends at the dashed line"
    best, best_emulated = (f"{max(gain, key=gain.get)} MB/s" for gain in (gains, gains_emulated))
    return best, best_emulated, timeline_scene(*shown, marks=ends, title=title)


def _gain(steps: Steps) -> float:
    """The share of a bucketed step that overlap saves."""
    return 1 - steps["overlapped"].duration / steps["bucketed"].duration


def streams_scene(layers: int = 6) -> Scene:
    """Draw one step on a GPU by a model with round numbers: what the CPU, the compute stream and NCCL's stream do.

    The CPU needs 1 ms to enqueue a layer's forward or backward, or an all-reduce. The GPU computes a forward in 2 ms
    and a backward in 4 ms. Two layers share a bucket, and its all-reduce takes 6 ms. Each starts when it was enqueued,
    its stream is free, and what it needs is there.
    """
    spans: list[Span] = []
    free = {"host": 0.0, "compute": 0.0, "communication": 0.0}  # when the CPU and each stream are free, in seconds

    def enqueue(lane: str, name: str, kind: str, seconds: float, after: float = 0.0) -> None:
        called, free["host"] = free["host"], free["host"] + 1e-3
        start = max(free[lane], free["host"], after)
        free[lane] = start + seconds
        add = partial(Span, rank=0, name=name, kind=kind)
        spans.extend([add(lane="host", start=called, end=free["host"]), add(lane=lane, start=start, end=free[lane])])

    for layer in range(layers):
        enqueue("compute", f"F{layer}", "forward", 2e-3)
    for layer in reversed(range(layers)):
        enqueue("compute", f"B{layer}", "backward", 4e-3)
        if layer % 2 == 0:
            enqueue("communication", "all-reduce", "communication", 6e-3, after=free["compute"])
    enqueue("compute", "step", "optimizer", 3e-3, after=free["communication"])
    wait = {"name": "loss.item() waits", "start": free["host"], "end": free["compute"]}
    spans.append(Span(rank=0, lane="host", kind="waiting", **wait))
    timeline = Timeline(spans=tuple(spans), source="predicted", title="a model with round numbers")
    title = "One step: the GPU computes, NCCL communicates, the CPU enqueues"
    return timeline_scene(timeline, names=["GPU"], title=title)


# ---- sections G and H of the notebook ----


def skipped_layer(ranks: Ranks, three_steps: Callable[..., str], theirs: Callable) -> tuple[str, str]:
    """Find where PyTorch's DDP raises first if rank 1 skips a layer, for guess `03.skips`, and what it says.

    Where it raises anywhere else, the first sentence of the error is returned in place of a choice, and matches none.
    three_steps: the notebook's function, which trains for three steps under a DDP and returns "done".
    """
    said = str(failure_of(ranks, three_steps, theirs))
    first = said.partition(". ")[0]
    lines = [first, *(one.strip() for one in said.splitlines() if one.startswith(("Parameter", "ranks")))]
    cured = [ranks.run(three_steps, wrap, find_unused_parameters=True) for wrap in (DistributedDataParallel, theirs)]
    if cured == [["done"] * len(ranks)] * 2:
        lines.append("With `find_unused_parameters=True`, PyTorch's DDP and this course's DDP both finish.")
    in_second = first.startswith("rank 1 ") and "prior iteration" in said  # PyTorch's check before a forward
    return "rank 1, in its second forward" if in_second else first, "\n\n".join(lines)


def uneven_batches(ranks: Ranks, epoch: Callable[[bool], int]) -> tuple[str, Scene, str]:
    """Find who waits if rank 0 has a batch more, for guess `03.uneven`; a picture, and the report.

    Where anyone else waits, the first line of the report is returned in place of a choice, and matches none.
    epoch: the notebook's loop, which is run without join.
    """
    said = str(failure_of(ranks, epoch, False))
    in_backward = "rank 0 waits in all_reduce" in said and ".backward()" in said
    waits = "rank 0, in the backward of its third batch" if in_backward else said.splitlines()[0]
    steps = ["all-reduce 1", "all-reduce 2", "all-reduce 3", "end of the epoch"]
    scene = hang_scene(steps, [2, 3, 3, 3], skips=[(rank, 2) for rank in (1, 2, 3)])
    return waits, scene, "\n\n".join(said.splitlines()[:2])


def likely_message(num_elements: int, dtype: torch.dtype, cap: int = 25 * MIB) -> tuple[str, str]:
    """Say what a DDP job most likely sent in an all-reduce of `num_elements`, for guess `03.watchdog`.

    Returns also a line with the bytes of the message and of the cap. A bucket closes with the gradient that takes it to
    its cap, so its size is a little above the cap.
    """
    num_bytes = num_elements * dtype.itemsize
    is_bucket = cap <= num_bytes < 1.01 * cap  # the message in the question is 0.3 % above the cap
    said = "a bucket that has just reached its cap" if is_bucket else "all of its gradients in one message"
    return said, f"The message has {num_bytes:,} B, and a bucket closes at {cap:,} B."


def epochs_of_sampler() -> tuple[str, str]:
    """Find the order of the second epoch without set_epoch, for guess `03.second-epoch`.

    Returns also the shares of four ranks in two epochs without and with it.
    """
    without, with_it = ddp.sampler_orders(False), ddp.sampler_orders(True)
    lines = [
        f"{name} `set_epoch`, epoch {n}: ranks 0 to 3 have " + " · ".join(", ".join(map(str, part)) for part in epoch)
        for name, epochs in (("without", without), ("with", with_it))
        for n, epoch in enumerate(epochs)
    ]
    said = "in the same shuffled order" if without[0] == without[1] else "in a new shuffled order"
    return said, "\n\n".join(lines)


def rehearsed_with_global_rank() -> tuple[str, str]:
    """Rehearse `train_ddp` with RANK in place of LOCAL_RANK on two machines, for guess `03.gpu-number`.

    The text also says what a rehearsal of the script finds as it is.
    """
    script = Path(train_ddp.__file__).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        args = [f"{folder}/checkpoint.pt", "1"]
        clean = rehearse(script, nproc=2, args=args)
        changed = rehearse(script.replace('"LOCAL_RANK"', '"RANK"'), nproc=1, nnodes=2, args=[f"{folder}/new.pt", "1"])
    said = "rank 1 fails when it chooses its GPU"
    is_ordinal = any(one.is_mistake for one in changed.findings) and "invalid device ordinal" in str(changed)
    wrong = "both ranks train, each on its own GPU" if changed.ok else "both ranks wait in the first all-reduce"
    error = next((line.strip() for line in str(changed).splitlines() if "invalid device ordinal" in line), "")
    text = f"with `LOCAL_RANK`: {clean.headline}\n\nwith `RANK`: {changed.headline} {error}"
    return said if is_ordinal else wrong, text
