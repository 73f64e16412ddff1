"""Draws and prints what the cells of chapter 08 reveal. zero.py runs what is drawn here.

P = bytes of all parameters. Names that end in `_scene` return a `Scene`, a picture; `messages_table` returns text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from helpers.chapters.zero import WIDTHS
from helpers.draw import (
    Axis,
    Scene,
    curves_scene,
    memory_scene,
    messages_scene,
    replicas_scene,
    shares_scene,
    timeline_scene,
    zero_messages,
    zero_shares,
)
from helpers.draw.chapters.zero import reshard_scene
from helpers.observe.equality import Tensors
from helpers.predict.memory import model_states
from helpers.predict.traffic.zero import data_parallel_share
from helpers.records import CommLog, MemoryBreakdown, Timeline
from helpers.specs import Plan
from helpers.workloads import MLP

OPENING_PARAMETERS, GPU_BYTES = 7_500_000_000, 80e9
HUES = {"stage 1": "buffers", "stage 2": "activations", "stage 3": "sign", "one GPU": "ink"}
KINDS = ("parameters", "gradients", "optimizer")


def opening_scene() -> Scene:
    """64 GPUs that all store the model states of 7.5 billion parameters."""
    title = "Data parallelism: 64 GPUs store the same 120 GB"
    return replicas_scene(model_states(OPENING_PARAMETERS, Plan(dp=64)), 64, capacity=GPU_BYTES, title=title)


def stored_scene(stored: Mapping[str, MemoryBreakdown], num_parameters: int) -> tuple[Scene, dict[str, float]]:
    """Draw the measured bytes per parameter of each stage, "stage 0" to "stage 3", and give the numbers, for 08.stage2.

    AssertionError where they are not the predicted bytes of fp32, or where activations differ between stages.
    """
    each = {}
    for stage, (name, found) in enumerate(stored.items()):
        states = model_states(num_parameters, Plan(dp=4, zero=stage, precision="fp32"))
        assert all(getattr(found, kind) == getattr(states, kind) for kind in KINDS), "to the byte, on every rank"
        each[name] = MemoryBreakdown(**{kind: getattr(found, kind) / num_parameters for kind in KINDS})
    assert len({found.activations for found in stored.values()}) == 1, "the same at every stage"
    scene = memory_scene(each, title="Bytes per parameter on each of 4 ranks, measured")
    return scene, {name: one.total for name, one in each.items()}


def stages_scene(stages: Mapping[str, MemoryBreakdown]) -> Scene:
    """Model states of 7.5 billion parameters on 64 ranks, by engine, with the memory of one GPU."""
    return memory_scene(stages, capacity=GPU_BYTES, capacity_name="one GPU", title="7.5 billion parameters on 64 ranks")


def floor_scene(num_parameters: int = 70_000_000_000) -> Scene:
    """What each rank stores under stages 1 to 3, on 8 to 1,024 ranks."""
    worlds = (8, 16, 32, 64, 128, 256, 512, 1024)
    large = {s: {n: model_states(num_parameters, Plan(dp=n, zero=s)).total / 1e9 for n in worlds} for s in (1, 2, 3)}
    lines = {f"stage {s}": list(sizes.items()) for s, sizes in large.items()} | {"one GPU": [(8, 80), (1024, 80)]}
    most = large[1][1024]
    return curves_scene(
        lines,
        x=Axis(name="ranks", ticks=(8, 64, 1024), log=True),
        y=Axis(name="GB on each", ticks=(0, 80, 140, 280, 400)),
        paints=HUES,
        dashed=["one GPU"],
        marks=[(1024, most, f"stage 1 on 1,024 ranks: {most:.0f} GB")],
        title="70 billion parameters: what each rank stores",
    )


def ranks_that_fit(num_parameters: int, stage: int) -> str:
    """Find the first of 8, 64 and 1,024 ranks on which the model states fit into 80 GB, as a choice of 08.floor."""
    sizes = {n: model_states(num_parameters, Plan(dp=n, zero=stage)).total for n in (8, 64, 1024)}
    return next((str(n) for n, size in sizes.items() if size <= GPU_BYTES), "never")


def traffic_scene(counted: Mapping[str, float], *names: str) -> Scene:
    """What each of 4 ranks sends in a step, for these names: the bar is predicted, and a dot shows what was counted."""
    rows = {name: row for name, row in zero_shares(4).items() if name in names}
    return shares_scene(rows, counted=counted, title="Sent by each of 4 ranks in a step, in parts of P")


def compared_with_ddp(share: float) -> str:
    """Say what a rank of 4 sends, compared with plain data parallelism, as a choice of 08.traffic1 and 08.traffic3."""
    words = {0.5: "half as much", 1: "the same", 1.5: "1.5 times as much", 2: "twice as much", 3: "3 times as much"}
    ratio = share / data_parallel_share(4)
    return words.get(ratio, f"{ratio:.2f} times as much")


def walk_scene(logs: Mapping[str, list[tuple[str, int, int]]]) -> Scene:
    """The nine messages of one step of three layers, in their order, for each engine."""
    rows = {name: zero_messages(log) for name, log in logs.items()}
    return messages_scene(rows, parts={"forward": 3, "backward": 6}, title="One step of stage 3, message by message")


def messages_table(logs: Mapping[str, CommLog]) -> str:
    """Text with a row for each log of the MLP of WIDTHS: its messages, and what a rank sends, in parts of P in fp32."""
    num_parameters = sum(parameter.numel() for parameter in MLP(WIDTHS).parameters())
    rows = [f"{'':35}  all-gather  reduce-scatter  all-reduce     sent"]
    for name, log in logs.items():
        gathers, scatters, reduces = (log.count(op) for op in ("all_gather", "reduce_scatter", "all_reduce"))
        sent = sum(event.sent_bytes() for event in log.events) / (4 * num_parameters)
        rows.append(f"{name:35}  {gathers:10}  {scatters:14}  {reduces:10}  {sent:5.2f} P")
    return "\n".join(rows)


def accumulation_scene(sent: Mapping[tuple[int, int], float]) -> Scene:
    """What a rank sends under stages 1 to 3. sent: (stage, micro-batches) -> parts of P, counted."""
    lines = {
        f"stage {stage}": [(m, share) for (other, m), share in sent.items() if other == stage] for stage in (1, 2, 3)
    }
    return curves_scene(
        lines,
        x=Axis(name="micro-batches in a step", ticks=(1, 2, 3, 4)),
        y=Axis(name="parts of P", ticks=(0, 3, 6, 9)),
        paints=HUES,
        dots=True,
        title="Sent by each of 4 ranks in a step (dots are counted)",
    )


def prefetch_scene(ahead: Timeline, emulated: Timeline) -> Scene:
    """One step with prefetch, as the model predicts it and as two paced ranks ran it."""
    title = "One step with prefetch: predicted above, emulated below"
    return timeline_scene(ahead.for_rank(0), emulated.for_rank(0), title=title)


def network_scene(times: Mapping[int, Mapping[str, Mapping[float, float]]]) -> Scene:
    """Seconds per step over the network's speed. times: micro-batches -> stage -> Gb/s -> seconds, predicted."""
    curves = {
        "stage 3, m = 16": times[16]["stage 3"],
        "stage 1, m = 16": times[16]["stage 1, overlapped"],
        "stage 3, m = 1": times[1]["stage 3"],
        "stage 1, m = 1": times[1]["stage 1, overlapped"],
    }
    meet = crossing(times[1], "stage 1, overlapped")
    marks = [(meet, times[1]["stage 3"][meet], "equal"), (100, times[16]["stage 3"][100], "the question")]
    return curves_scene(
        {name: list(points.items()) for name, points in curves.items()},
        x=Axis(name="network of a node in Gb/s", ticks=(10, 100, 1000, 3200), log=True),
        y=Axis(name="seconds per step, predicted", ticks=(0.1, 1, 10, 100, 1000), log=True),
        marks=marks,
        paints=HUES,
        dashed=[name for name in curves if name.endswith("m = 1")],
        title="A step of m micro-batches, both stages overlapped",
    )


def crossing(times: Mapping[str, Mapping[float, float]], stage_1: str) -> float:
    """The first of the simulated speeds, in Gb/s, at which stage 3 takes at most 1 % longer than stage 1.

    stage_1: "stage 1", which hides nothing, or "stage 1, overlapped".
    """
    return next(speed for speed, taken in times["stage 3"].items() if taken <= 1.01 * times[stage_1][speed])


def norms_text(norms: Sequence[float], whole: float) -> str:
    """The norm that each of four ranks finds for its own shards, and the norm that one process finds."""
    found = "  ".join(f"{norm:.4f}" for norm in norms)
    return f"Norms that the four ranks find: {found}. The norm in one process: {whole:.4f}."


def clipping_in_words(own_clip: Sequence[Tensors], zero3_clip: Sequence[Tensors]) -> str:
    """Say what weights all ranks have after each rank clipped by its own norm, as a choice of 08.clipped.

    own_clip, zero3_clip: the full weights of each rank after either way to clip. The second way is right.
    """
    first, right = own_clip[0], zero3_clip[0]
    equal = all(torch.equal(one[name], first[name]) for one in own_clip for name in first)
    wrong = any(not torch.allclose(first[name], right[name], rtol=1e-6) for name in first)
    return "different on each rank" if not equal else "equal on all ranks, and wrong" if wrong else "right on all ranks"


def resumed_scene() -> Scene:
    """26 elements of four tensors, sharded over 4 ranks and over 3."""
    layers = {"a.weight": 12, "a.bias": 4, "b.weight": 8, "b.bias": 2}
    return reshard_scene(layers, 4, 3, title="26 elements: the boundaries move, and so do the zeros (hatched)")
