"""The scenes that the tests of this folder look at."""

from types import SimpleNamespace

from helpers import draw
from helpers.draw import Axis, Line, Matrix, Part, Rect, zero_messages, zero_shares
from helpers.draw.chapters.experts import dispatch_scene, expert_load_scene
from helpers.draw.chapters.fault_tolerance import (
    generations_scene,
    heartbeats_scene,
    loss_differences_scene,
    loss_over_time_scene,
)
from helpers.draw.chapters.long_context import causal_work_scene
from helpers.draw.chapters.pipeline import blocking_sends_scene, stage_splits_scene
from helpers.draw.chapters.strategies import strategies_scene
from helpers.draw.chapters.tensor_parallel import tensor_split_scene
from helpers.draw.chapters.zero import StageBar, reshard_scene, zero_scene
from helpers.draw.collectives import all_reduce_times_scene
from helpers.draw.scene import ANCHORS, text_width
from helpers.draw.waterfall import waterfall_scene
from helpers.predict.advice.advise import advise
from helpers.predict.by_hand.tensor_split import split
from helpers.predict.by_hand.zero_steps import zero_steps
from helpers.predict.failures import simulate_week
from helpers.predict.time.pipeline import simulate
from helpers.predict.time.step import Bar, StepTime
from helpers.predict.traffic.algorithms import schedule
from helpers.records import Holding, Magnitudes, MemoryBreakdown, Span, Timeline
from helpers.schedules import interleaved, one_f_one_b, zb_h1
from helpers.specs import CLUSTERS, PRESETS, Link
from helpers.specs.mesh import Mesh
from helpers.widgets import LongContextExplorer, MeshExplorer, ScalingExplorer, TraceExplorer


def ddp_step(source="predicted", *, num_ranks=4, num_blocks=4, title="One DDP step"):
    """Forward, then backward with an all-reduce of each block behind it, then the optimizer."""
    spans = []
    for rank in range(num_ranks):
        now, link_free = 0.1 * rank, 0.0
        for block in range(num_blocks):
            spans.append(span(rank, "forward", now, now + 1, f"blocks.{block}"))
            now += 1
        for block in reversed(range(num_blocks)):
            spans.append(span(rank, "backward", now, now + 2, f"blocks.{block}"))
            now += 2
            link_free = max(now, link_free) + 2.5
            spans.append(span(rank, "communication", link_free - 2.5, link_free, "all_reduce", 25_000_000))
        spans.append(span(rank, "optimizer", link_free, link_free + 1, "AdamW"))
    return Timeline(spans=spans, source=source, title=title)


def rounds_of_healing():
    """Copy 2 of three dies in step 2, which the others do again, and is healed by copy 0 before step 3."""
    all_three, two = (0, 1, 2), (0, 1)
    told = [(0, all_three, all_three, 6, ()), (1, all_three, (), 0, ()), (1, two, two, 4, ())]
    told.append((2, all_three, all_three, 6, (2,)))
    names = ("step", "members", "done", "samples", "behind")
    return [SimpleNamespace(source=0, **dict(zip(names, one, strict=True))) for one in told]


def span(rank, kind, start, end, name="work", num_bytes=0):
    lane = "communication" if kind == "communication" else "compute"
    return Span(rank=rank, lane=lane, name=name, kind=kind, start=start, end=end, num_bytes=num_bytes)


def gathered(num_ranks):
    """The states of a ring all-gather."""
    states = [[[{chunk} if chunk == rank else set() for chunk in range(num_ranks)] for rank in range(num_ranks)]]
    for step in range(num_ranks - 1):
        now = [[set(cell) for cell in rank] for rank in states[-1]]
        for rank in range(num_ranks):
            chunk = (rank - step) % num_ranks
            now[(rank + 1) % num_ranks][chunk] = {chunk}
        states.append(now)
    return states


def reduced(num_ranks):
    """The states of a reduction in which rank r hands all it has to rank r + 1."""
    states = [[[{rank} for _ in range(num_ranks)] for rank in range(num_ranks)]]
    for last in range(1, num_ranks):
        states.append([[{*range(min(rank, last) + 1)} for _ in range(num_ranks)] for rank in range(num_ranks)])
    return states


def pipeline(schedule):
    """A step of a pipeline with what each rank holds."""
    return simulate(schedule, forward=1.0, backward_input=1.0, backward_weight=1.0, send=0.1, activation_bytes=1)


def step(collective, algorithm, num_ranks, number):
    """The picture of one step of a schedule."""
    plan = schedule(collective, num_ranks, algorithm)
    states = list(plan.replay())[number:][:2]
    return draw.collective_step_scene(*states, plan.step(number), title=f"{collective} by {algorithm}", step=number + 1)


def cut(name, ranks, shown="forward", **options):
    """The picture of one pass over a layer that is cut."""
    bars = {
        "products": {"forward": ("other", 2.0), "backward": ("other", 1.0)},
        "link": {"forward": ("communication", 1.0)},
    }
    return tensor_split_scene(split(name, ranks, **options)[shown], title=name, bars=bars, bars_title="At real size")


def zero(stage, number):
    """The picture of one step of training with ZeRO."""
    memory = MemoryBreakdown(parameters=40, gradients=40, optimizer=160)
    bars = [StageBar(name=f"ZeRO-{one}", memory=memory, words=" · sends 3 B", chosen=one == stage) for one in (2, 3)]
    return zero_scene(zero_steps(stage)[number - 1], title=f"ZeRO-{stage}", bars=bars, bars_title="At real size")


CALLS = [("first", 10), ("second", 20)]
MEMORY = MemoryBreakdown(parameters=40, gradients=40, optimizer=80, activations=70, buffers=1, temporaries=9)
MAGNITUDES = Magnitudes(name="gradients of activations", lowest=-40, counts=tuple(range(30)), zeros=3)


def strategies(model, cluster):
    """What advise finds, drawn."""
    advice = advise(PRESETS[model], CLUSTERS[cluster])
    return strategies_scene(advice.candidates, limit=advice.request.usable, limit_name="usable", title=cluster)


TWO_TENSORS = Timeline(
    source="recorded",
    spans=[span(0, "other", 0, 4)],
    held=[
        Holding(rank=0, name="weight", kind="parameters", num_bytes=400, start=0, end=4),
        Holding(rank=0, name="x", kind="activations", num_bytes=300, start=1, end=3),
    ],
)
HELD = MemoryBreakdown(parameters=15 * 10**9, gradients=15 * 10**9, optimizer=90 * 10**9)
WALK = [("all_gather", 0, 6240), ("all_gather", 1, 9312), ("all_gather", 1, 9312), ("reduce_scatter", 1, 37248)]
SCENES = {
    "copies": draw.replicas_scene(HELD, 64, capacity=80e9, title="64 equal stacks"),
    "one copy": draw.replicas_scene(HELD, 1, capacity=200e9, title="One stack below the line"),
    "shares": draw.shares_scene(zero_shares(4), counted=dict.fromkeys(zero_shares(4), 1.5), title="Parts of P"),
    "messages": draw.messages_scene({"ours": zero_messages(WALK)}, parts={"forward": 2, "backward": 2}, title="A walk"),
    "curves": draw.curves_scene(
        {"stage 1": [(1, 1.5), (4, 1.5)], "stage 2": [(1, 1.6), (4, 1.7)]},
        x=Axis(name="micro-batches", ticks=(1, 2, 3, 4)),
        y=Axis(name="seconds", ticks=(1, 10, 100), log=True),
        marks=[(4, 1.7, "at the right end")],
        dots=True,
        title="Names that would lie on each other",
    ),
    "a layer of tensor parallelism": draw.tensor_layer_scene(title="One layer"),
    "healing": draw.healing_scene(rounds_of_healing(), title="Copy 2 dies and returns"),
    "recut": reshard_scene({"a": 7, "b": 3}, 4, 3, title="Ten numbers, cut anew"),
    "two cuts": stage_splits_scene([1, 1, 1, 3], {"even": [2, 2], "best": [3, 1]}, title="Two cuts of four layers"),
    "blocking sends": blocking_sends_scene(),
    "beats": heartbeats_scene(
        {0: [(1, 7, True), (2, 7, False), (3, 7, True)], 1: [(1, 7, False)]},
        {0: "hung", 1: "dead"},
        now=9.5,
        title="Two ranks",
    ),
    "clock": loss_over_time_scene(
        [(0, 1, 4, 0.1), (0, 2, 3, 0.2), (1, 2, 3, 1.3)], death="rank 2 dies", title="By the clock"
    ),
    "generations": generations_scene(
        [("of 4", 1, 22, "dies"), ("of 3", 21, 40, "done")], steps=40, every=10, title="G"
    ),
    "partings": loss_differences_scene(
        {"RNG": ([3, 2, 1], [3, 2, 1.5]), "step": ([3, 2], [3, 1])}, stopped=1, title="Apart"
    ),
    "strategies": strategies("llama3-70b", "4 nodes of 8 H100, 8 x 400 Gb/s"),
    "strategies, one GPU": strategies("gpt2", "1 T4"),
    "strategies, some cannot run": strategies("gpt2-xl", "4 V100"),
    "a week": draw.week_scene(
        simulate_week(nodes=2048, per_node_day=6.5e-3, interval=600, save=60, repair=600), title="A week"
    ),
    "effective": draw.effective_time_scene(mtbf=6490, save=60, repair=600),
    "close to the best": draw.effective_time_scene(mtbf=6490, save=60, repair=600, interval=600),
    "far right": draw.effective_time_scene(mtbf=6490, save=60, repair=600, interval=43_200),
    "far left": draw.effective_time_scene(mtbf=10_000_000, save=600, interval=10),
    "left of the best": draw.effective_time_scene(mtbf=6490, save=60, repair=600, interval=120),
    "nothing is kept": draw.effective_time_scene(mtbf=300, save=60, repair=1200, interval=300),
    "timelines": draw.timeline_scene(ddp_step(), ddp_step("recorded")),
    "a mark per timeline": draw.timeline_scene(ddp_step(num_ranks=1), marks=[(40, "another ends")]),
    "payloads": draw.payloads_scene({"buckets": [2_360_000, 28_400_000], "none": []}, title="Two messages, and none"),
    "token weights": draw.token_weights_scene((4, 8, 16, 32), title="As tall as its weight"),
    "one rank": draw.timeline_scene(ddp_step(num_ranks=1)),
    "a trace": TraceExplorer().scene,
    "context parallelism": LongContextExplorer().scene,
    "expert load": expert_load_scene([30, 10, 0, 40], title="Four experts on two ranks", ranks=2, capacity=30),
    "many experts": expert_load_scene([*range(64)], title="64 experts", ranks=64),
    "dispatch": dispatch_scene([[(0, 3), (1, 3)], [(3, 2), (0, 1)]], 4, title="Two tokens of each rank"),
    "mesh of experts": draw.mesh_scene(Mesh(dp=8, tp=2, ep=4), names=("edp", "ep", "tp")),
    "causal work": causal_work_scene([[0, 1, 2], [3, 4, 5]], (6, 15), title="Six tokens on two ranks"),
    "more ranks than heads": LongContextExplorer("llama3-405b", seq=2**20, ranks=64, link="NVLink 4, H800").scene,
    "no heads for Ulysses": LongContextExplorer(ranks=64).scene,
    "a plan's scaling": ScalingExplorer().scene,
    "a plan at its end": ScalingExplorer(gpus=16_384).scene,
    "no scaling": ScalingExplorer("gpt2", "V100", gpus=1, batch=1, tp=1, pp=1, zero=0).scene,
    "the sources' curve": draw.speedup_scene(measured=[(1, 1.0), (4, 3.5), (16, 11.0)], serial=0.03, title="Measured"),
    "one step": draw.step_scene(
        StepTime(bars=(Bar(name="bubble", seconds=1.0, binds="waiting"),), factor=1.2), title="A plan"
    ),
    "long title": draw.timeline_scene(ddp_step(), title="A long title that leaves no room for the legend beside it"),
    "two titles": draw.timeline_scene(ddp_step(title="a" * 60), ddp_step("emulated", title="overlapped")),
    "16 ranks": draw.timeline_scene(ddp_step(num_ranks=16)),
    "200 blocks": draw.timeline_scene(ddp_step(num_blocks=200)),
    "an instant": draw.timeline_scene(Timeline(spans=[span(0, "other", 1, 1)], source="recorded")),
    "a limit": draw.parts_scene(
        {"a": [Part(text="9 GB", kind="forward", size=9)]}, title="t", ends={"a": "9 GB"}, limits={"a": 5}
    ),
    "times of an all-reduce": all_reduce_times_scene(64, Link(latency=1e-5, bandwidth=25e9)),
    "a waterfall": waterfall_scene({"compute": 0.06, "data": 0.02, "waiting": 0.02}, title="A step"),
    "formats": draw.number_formats_scene(),
    "two formats, marked": draw.number_formats_scene(
        ["fp16", "fp8 E4M3"], marks={"a gradient": 1e-6, "one close by": 2e-6}
    ),
    "formats, marked": draw.number_formats_scene(
        marks={"a gradient": 1e-9, "another": 1e-6, "a weight": 0.02, "a scaled loss": 131072.0}
    ),
    "magnitudes in fp16": draw.magnitudes_scene(MAGNITUDES, "fp16", 2.0**10),
    "magnitudes in fp8, far up": draw.magnitudes_scene(MAGNITUDES, "fp8 E4M3", 2.0**24, window=(-64, 26)),
    "magnitudes in bf16": draw.magnitudes_scene(MAGNITUDES, "bf16"),
    "one magnitude": draw.magnitudes_scene(Magnitudes(counts=(1,)), "fp16", 3.0),
    "memory": draw.memory_scene({"rank 0": MEMORY, "rank 1": MEMORY}, capacity=300),
    "memory, too much": draw.memory_scene(
        {
            "plain": MEMORY,
            "sharded": MemoryBreakdown(parameters=90, gradients=4),
            "small": MemoryBreakdown(parameters=12),
        },
        capacity=100,
        capacity_name="a GPU's",
    ),
    "memory, 8 ranks": draw.memory_scene({f"rank {rank}": MEMORY for rank in range(8)}, capacity=239),
    "memory, far below": draw.memory_scene(
        {"rank 0": MEMORY}, capacity=240_000, title="A long title beside its legend"
    ),
    "parts": draw.parts_scene(
        {"short": [Part(text="1", kind="forward", size=1)], "long": [Part(text="", kind="backward", size=3)] * 2},
        title="Parts",
        ends={"short": "1", "long": "6"},
        legend={"forward": "once"},
        limits={"short": 2},
    ),
    "memory over time": draw.memory_curve_scene(TWO_TENSORS, title="Two tensors, one after the other"),
    "column parallel": draw.shards_scene(
        [
            Matrix(name="X", num_rows=4, num_columns=6, shape="(B·T) × C"),
            "·",
            Matrix(name="A", num_rows=6, num_columns=8, cut="columns", num_parts=4),
            "=",
            Matrix(name="Y", num_rows=4, num_columns=8, cut="columns", num_parts=4, note="no communication"),
        ]
    ),
    "row parallel": draw.shards_scene(
        [
            Matrix(name="B", num_rows=4, num_columns=2, cut="rows", num_parts=2, values=[[0.5, -1], [2, 3]] * 2),
            "=",
            Matrix(name="Z₁", num_rows=2, num_columns=2, ranks=(1,)),
        ],
        title="Row parallel",
    ),
    "flat cuts": draw.shards_scene(
        [
            Matrix(name="W₁", num_rows=6, num_columns=8, cut="flat", num_parts=8),
            "and",
            Matrix(name="W₂", num_rows=2, num_columns=3, cut="flat", num_parts=3, values=[[1, 2, 3], [4, 5, 6]]),
        ]
    ),
    "16 parts": draw.shards_scene([Matrix(name="A", num_rows=16, num_columns=32, cut="columns", num_parts=16)]),
    "1F1B": draw.pipeline_scene(pipeline(one_f_one_b(4, 8)), pipeline(one_f_one_b(4, 8)), instant=9.5),
    "zero bubble": draw.pipeline_scene(pipeline(zb_h1(4, 8))),
    "interleaved": draw.pipeline_scene(pipeline(interleaved(12, 8, 3)), num_ranks=4),
    "a pipeline of 16": draw.pipeline_scene(pipeline(one_f_one_b(16, 32))),
    "split MLP": cut("mlp", 2),
    "split MLP, sequence": cut("mlp", 4, sequence_parallel=True),
    "split MLP, weights": cut("mlp", 2, "backward: weights", sequence_parallel=True),
    "split attention": cut("attention", 4, sequence_parallel=True),
    "split attention, inputs": cut("attention", 4, "backward: inputs"),
    "split attention, weights": cut("attention", 4, "backward: weights"),
    "split embedding": cut("embedding", 4),
    "split head": cut("head", 4, sequence_parallel=True),
    "split head, inputs": cut("head", 2, "backward: inputs"),
    "ZeRO-3, gather": zero(3, 2),
    "ZeRO-3, gradients": zero(3, 12),
    "ZeRO-2, update": zero(2, 11),
    "ZeRO-1, end": zero(1, 10),
    "ZeRO-0, start": zero(0, 1),
    "mesh": draw.mesh_scene(Mesh(pp=2, dp=2, tp=4), rank=5),
    "mesh across nodes": draw.mesh_scene(Mesh(dp=2, tp=16), rank=18),
    "mesh of 256": draw.mesh_scene(Mesh(pp=4, dp=16, cp=2, tp=2), rank=77),
    "mesh of 64": draw.mesh_scene(Mesh(pp=2, dp=4, cp=2, tp=4), rank=3),
    "cube": draw.cube_scene(Mesh(dp=2, pp=2, tp=2)),
    "cube of 12": draw.cube_scene(Mesh(dp=3, pp=2, tp=2), 5),
    "cube without a rank": draw.cube_scene(Mesh(dp=2, pp=3, tp=2), None),
    "plan": MeshExplorer().scene,
    "plan of 64": MeshExplorer(dp=16, gpus_per_node=2, rank=63).scene,
    "plan of 64 on 8": MeshExplorer("llama3-70b", dp=1, pp=8, tp=8, gpus_per_node=8, rank=34).scene,
    "mesh of 3 on 2": draw.mesh_scene(Mesh(dp=3), gpus_per_node=2, rank=None),
    "a killed rank": draw.killed_rank_scene(1, 3, ["rank 1 died: killed by SIGKILL", "at cell line 11: `os.kill(…)`"]),
    "a stack that is late": draw.late_stack_scene(),
    "processes": draw.processes_scene(4),
    "ring of one step": draw.ring_scene(4),
    "kinds of errors": draw.error_kinds_scene(),
    "rounds of a tree": draw.broadcast_rounds_scene(schedule("broadcast", 8, "tree")),
    "values": draw.all_reduce_scene([1, 2, 3, 4], [10.0] * 4),
    "standing": draw.hang_scene(["if examples > 0", "all_reduce", "end of the cell"], [1, 2, 1, 1], [(1, 1)]),
    "means": draw.means_scene([[2] * 4, [2] * 4, [2] * 4, [10]]),
    "pairing": draw.pairing_scene(
        [[("first", 10), ("second", 20)], [("second", 20)]] + [[("first", 10), ("second", 20)]] * 2
    ),
    "gather": draw.collective_scene(gathered(4), "Ring all-gather"),
    "gather 12": draw.collective_scene(gathered(12), "Ring all-gather"),
    "reduce": draw.collective_scene(reduced(5), "Reduce"),
    "step of a ring": step("all_reduce", "ring", 8, 9),
    "step of halving": step("all_reduce", "halving_doubling", 6, 1),
    "step of a tree": step("broadcast", "tree", 8, 2),
    "ring": draw.topology_scene("ring", 5),
    "star": draw.topology_scene("star", 4, edges={(0, 1): "weights", (1, 0): "gradients"}, names={0: "master"}),
}


def tooltips(scene):
    return [item.tooltip for item in scene.items if isinstance(item, (Rect, Line)) and item.tooltip]


def box_of(label):
    """Left, top, right and bottom of a text in pixels, from its estimated width."""
    width = text_width(label.text, label.size, label.bold)
    left = label.x - width * ANCHORS.index(label.anchor) / 2
    return left, label.y - label.size / 2, left + width, label.y + label.size / 2


def texts(scene):
    return [label.text for label in scene.labels()]


def rects_with_tooltip(scene):
    return [item for item in scene.items if isinstance(item, Rect) and item.tooltip]
