"""Draws what chapter 11 predicts: the terms of a step, Amdahl's law, plans on 16,384 GPUs, links and a batch's growth.

Predictions come from `helpers.predict`, above all from the six lines of arithmetic in by_hand/step_time.py, whose terms
are the seconds of compute, bubble, tensor-parallel messages and exposed data-parallel messages. Published seconds come
from the table of published steps. Names that end in `_scene` return a `Scene`, a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from helpers.draw import Axis, Part, Scene, curves_scene, parts_scene
from helpers.draw.waterfall import BINDS
from helpers.predict.advice.criticise import Criticism
from helpers.predict.scaling import CurveFit, amdahl
from helpers.predict.time.calibrate import MeasuredStep, published_steps
from helpers.predict.time.flops import mfu
from helpers.predict.time.stacks import STACKS
from helpers.predict.time.step import step_time
from helpers.specs import GPUS, LINKS, PRESETS, Cluster, Link, Plan

# The kind of the palette, and so the colour, of each term of a step, in the order of `step_terms`.
TERMS = {"forward": "compute", "waiting": "bubble", "weight_grad": "tensor parallelism"}
TERMS |= {"communication": "exposed data parallelism"}
# TFLOP/s per GPU of Llama-3 405B with 8,192 tokens per sequence, by GPUs: The Llama 3 Herd of Models, table 4.
LLAMA3_TFLOPS = {8192: 430, 16_384: 400}
CHINCHILLA = 20  # training tokens per parameter, the rule of thumb of Hoffmann et al. 2022
BIG, SMALL = "n=8192 cp=1 seq=8192", "8B FSDP8 compile"  # rows of steps.csv
LARGE, LARGE_FP8 = "70B FSDP32 TP8 bf16", "70B FSDP32 TP8"
Terms = Sequence[float]
# What a cell calls a thing -> the choice in the question before it, which the cell must not print early.
CHOICES = {
    "tensor": "messages of tensor parallelism", "bubble": "the pipeline's bubble",
    "data": "messages of data parallelism",
    "NVLink at 450 GB/s": "NVLink carries only 370 GB/s", "a free network": "the network carries only 50 GB/s",
    "8B with recomputation": "the 8B run recomputes nothing",
    "ZeRO-3": "tp 8 and ZeRO-3, no pipeline", "tp 64": "tp 64, no pipeline", "1 chunk": "tp 8, pp 16, 1 chunk",
    "8 chunks": "tp 8, pp 16, 8 chunks",
    "64 images each": "64 images per GPU", "32 images each": "32 images per GPU",
    "64 each, NVLink": "NVLink between the GPUs", "1,024 divided": "1,024 images, divided among the GPUs",
}  # fmt: skip
TOKENS = {"16 billion": 16e9, "160 billion": 160e9, "1.6 trillion": 1.6e12, "15 trillion": 15e12}  # choices, too


def published_row(name: str) -> MeasuredStep:
    """The published step with this name, whose `seconds` are what the source printed or what follows from its rate."""
    return {row.name: row for row in published_steps() if row.group in ("Llama 3 T4", "TorchTitan")}[name]


def opening_scene() -> Scene:
    """The published step of Llama-3 405B beside the time of the model's operations at the rate of the data sheet."""
    row = published_row(BIG)
    how = dict(batch=row.plan.global_batch, seconds=row.seconds, peak_flops=row.cluster.gpu.flops, num_gpus=8192)
    best = row.seconds * mfu(row.model, **how)
    parts = [
        Part(text=f"at the data sheet's rate: {best:.1f} s", kind="forward", size=best),
        Part(text="where does this time go?", kind="waiting", size=row.seconds - best),
    ]
    name = "from the published rate"
    title = "A step of Llama-3 405B on 8,192 H100s"
    return parts_scene({name: parts}, ends={name: f"{row.seconds:.1f} s"}, title=title)


def terms_scene(
    steps: Mapping[str, Terms], *, published: Mapping[str, float], title: str, source: str = "published"
) -> Scene:
    """A row for each predicted step, divided into its terms, and below it the published step of the same name.

    source: what the row of a published step is called.
    """
    rows: dict[str, list[Part]] = {}
    ends = {}
    for name, terms in steps.items():
        rows[name] = [Part(text="", kind=kind, size=size) for kind, size in zip(TERMS, terms, strict=True)]
        ends[name] = f"{sum(terms):.1f} s predicted"
        if name in published:
            row, seconds = source if len(steps) == 1 else f"{name}, {source}", published[name]
            rows[row] = [Part(text="", kind="optimizer", size=seconds)]
            off = sum(terms) / seconds - 1
            ends[row] = f"{seconds:.1f} s; the prediction is {abs(off):.0%} {'shorter' if off < 0 else 'longer'}"
    return parts_scene(rows, ends=ends, title=title, legend=TERMS)


def corrections_scene(predicted: Mapping[str, float], published: float, *, title: str) -> Scene:
    """The predicted seconds under each correction, with the published seconds as a dashed line."""
    rows = {name: [Part(text="", kind="forward", size=seconds)] for name, seconds in predicted.items()}
    ends = {name: f"{seconds:.1f} s: {seconds / published - 1:+.0%}" for name, seconds in predicted.items()}
    legend = {"forward": "predicted; dashed: published"}
    return parts_scene(rows, ends=ends, title=title, legend=legend, limits=dict.fromkeys(rows, published))


def utilization_table() -> str:
    """What the 70B's published steps in bf16 and Float8 say per GPU, and their MFU over two peaks."""
    lines = [f"{'':10}{'step':>8}{'tokens/s/GPU':>15}{'MFU of 989':>13}  MFU of 1,979"]
    for name, row in (("bf16", published_row(LARGE)), ("Float8", published_row(LARGE_FP8))):
        batch, gpus = row.plan.global_batch, row.cluster.world_size
        how = dict(batch=batch, seconds=row.seconds, num_gpus=gpus)
        shares = [mfu(row.model, peak_flops=peak, **how) for peak in (989e12, 1979e12)]
        rate = batch * row.model.seq / gpus / row.seconds
        eight_bits = f"{shares[1]:.0%}" if row.plan.fp8 else "no products in 8 bits"
        lines.append(f"{name:10}{row.seconds:>6.1f} s{rate:>15.0f}{shares[0]:>13.0%}  {eight_bits}")
    return "\n".join(lines)


def nearest_tokens(found: float) -> str:
    """Find the choice of 11.tokens (TOKENS) that is nearest to `found` tokens, by factor."""
    return min(TOKENS, key=lambda name: abs(log(TOKENS[name] / found)))


def name_of_change(factor: float) -> str:
    """Find the choice of 11.noise for a noise scale that has grown by this factor."""
    if 1 / 1.5 < factor < 1.5:
        return "about the same"
    return "larger than before" if factor > 1 else "smaller than before"


def name_of_speedup(speedup: float) -> str:
    """Find the choice of 11.slow_link for this speed-up on four GPUs."""
    if speedup < 1:
        return "fewer than one GPU"
    # 3 lies halfway between the choices 2 and 4.
    return "about 2 times as many" if speedup < 3 else "nearly 4 times as many"


def published_doublings() -> list[tuple[str, int, int, float]]:
    """Published steps with the same batch on twice as many GPUs: what trained, both numbers, and the speed-up."""
    seconds = {(row.group, row.name): row.seconds for row in published_steps()}
    llama = LLAMA3_TFLOPS
    found = [("Llama-3 405B, Meta", 8192, 16_384, 2 * llama[16_384] / llama[8192])]
    for text, few, many, group, name in (
        ("GPT 175B, MegaScale", 3072, 6144, "MegaScale T2 MegaScale", "n={} B=6144"),
        ("GPT 175B, Megatron-LM", 256, 512, "MegaScale T2 Megatron-LM", "n={} B=768"),
        ("GPT 530B, Megatron-LM", 1120, 2240, "Narayanan T2 PTD", "529.6B n={} mbs1"),
    ):
        found.append((text, few, many, seconds[group, name.format(few)] / seconds[group, name.format(many)]))
    return found


def amdahl_scene(gpus: float, speedup: float, text: str) -> Scene:
    """Amdahl's law for serial shares of 20, 5 and 1 %, with one published speed-up and its name."""
    sizes, ticks = (1, 4, 16, 64, 256), (1, 4, 16, 64, 256)
    curves = {f"serial {share:.0%}": [(n, amdahl(n, share)) for n in sizes] for share in (0.2, 0.05, 0.01)}
    return curves_scene(
        curves | {"ideal": [(n, n) for n in sizes]},
        x=Axis(name="times as many GPUs", ticks=ticks, log=True),
        y=Axis(name="speed-up", ticks=ticks, log=True),
        dashed=["ideal"],
        marks=[(gpus, speedup, text, 8)],
        title="Strong scaling by Amdahl's law: the serial share is a ceiling",
    )


def plans_scene(judged: Mapping[str, Criticism]) -> Scene:
    """A step of each plan, by what bounds its terms, and the interval of each estimate."""
    rows, ends = {}, {}
    for name, one in judged.items():
        took = {what: sum(bar.seconds for bar in one.step.bars if bar.binds == what) for what in BINDS}
        rows[name] = [Part(text="", kind=BINDS[what], size=seconds) for what, seconds in took.items()]
        low, high = one.step.interval
        ends[name] = f"{one.step.seconds:.1f} s ({low:.0f} to {high:.0f} s)"
    legend = {kind: what for what, kind in BINDS.items() if what != "host"}
    title = "A step of Llama-3 405B on 16,384 H100s, predicted: what bounds it, and the interval"
    return parts_scene(rows, ends=ends, title=title, legend=legend)


def weak_scene(common: float, own: float, gpus: int) -> Scene:
    """Weak scaling: each of `gpus` GPUs has `own` seconds of work after `common` seconds that all of them wait for."""
    first = Part(text=f"{common * 1e3:.0f}", kind="waiting", size=common)
    work = Part(text=f"{own * 1e3:.0f} ms", kind="forward", size=own)
    rows = {f"each of {gpus} GPUs": [first, work], "one GPU, the same work": [first, *[work] * gpus]}
    ends = {name: f"{sum(part.size for part in parts) * 1e3:,.0f} ms" for name, parts in rows.items()}
    return parts_scene(rows, ends=ends, title="Weak scaling: the work grows with the GPUs")


def noise_scene(scales: Mapping[int, float]) -> Scene:
    """The noise scale of the small GPT, by training steps."""
    rows = {f"after {steps} steps": [Part(text="", kind="gradients", size=size)] for steps, size in scales.items()}
    ends = {f"after {steps} steps": f"{size:.1f} sequences" for steps, size in scales.items()}
    return parts_scene(rows, ends=ends, title="Noise scale of the small GPT, measured")


def links_scene(predicted: Mapping[int, float], emulated: Mapping[int, float]) -> Scene:
    """The speed-up of four emulated GPUs over links of so many Gb/s."""
    return curves_scene(
        {"predicted": list(predicted.items()), "one GPU": [(1, 1), (100, 1)]},
        x=Axis(name="Gb/s of the emulated link", ticks=(1, 10, 100), log=True),
        y=Axis(name="speed-up on 4 GPUs", ticks=(0, 2, 4)),
        dashed=["one GPU"],
        marks=[(rate, fast, f"emulated: {fast:.2f}", -78 if rate == 1 else 12) for rate, fast in emulated.items()],
        title="Weak scaling over links of 1 to 100 Gb/s",
    )


def models_between_nodes(nodes: int, micro_batches: int) -> dict[str, float]:
    """What a node sends to others per step under ZeRO-3 and under hybrid sharding, in sizes of the model."""
    away = (nodes - 1) / nodes  # the share of the model that lies in other nodes
    per_micro_batch = 2 + 1  # gathers for forward and backward, and a reduce-scatter
    return {"ZeRO-3": micro_batches * per_micro_batch * away, "hybrid": 2 * away}  # hybrid: one all-reduce per step


def hybrid_scene(nodes: int, micro_batches: int) -> Scene:
    """A step of Llama-2 7B under ZeRO-3 and hybrid sharding, with one network card per node and with eight."""
    shared = dict(dp=8 * nodes, zero=3, num_microbatches=micro_batches, recompute="full")
    rows, ends = {}, {}
    for cards in (1, 8):
        wires = dict(inter=Link.from_gigabits(100), network_cards=cards)
        cluster = Cluster(gpu=GPUS["A100"], gpus_per_node=8, num_nodes=nodes, intra=LINKS["NVLink 3"], **wires)
        for name, plan in {"ZeRO-3": Plan(**shared), "hybrid": Plan(**shared, shard_ranks=8)}.items():
            step = step_time(PRESETS["llama2-7b"], plan, cluster, STACKS["FSDP"])
            took = {what: sum(bar.seconds for bar in step.bars if bar.binds == what) for what in BINDS}
            row = f"{name}, {cards} network card{'s' * (cards > 1)} per node"
            rows[row] = [Part(text="", kind=BINDS[what], size=seconds) for what, seconds in took.items()]
            ends[row] = f"{step.seconds:.1f} s"
    legend = {kind: what for what, kind in BINDS.items() if what in ("tensor cores", "memory", "NVLink", "network")}
    title = "A step of 7 billion parameters on 64 A100s, predicted: what bounds it"
    return parts_scene(rows, ends=ends, title=title, legend=legend)


def loss_to_input(fit: CurveFit) -> float:
    """What the shared input adds to an image on the most GPUs, where 1 is what an image costs on one GPU."""
    return {part.name: part.lost[-1] for part in fit.parts}["input"]


def causes_scene(fits: Mapping[str, CurveFit]) -> Scene:
    """What a sample on 16 GPUs costs more than on one, as each fit divides it, by the assumption of the fit."""
    kinds = {"batch": "forward", "gradients": "communication", "stragglers": "waiting", "input": "data"}
    legend = {"forward": "smaller batches", "communication": "exposed gradients", "waiting": "stragglers"}
    rows = {
        name: [Part(text="", kind=kinds[part.name], size=max(0.0, part.lost[-1])) for part in fit.parts]
        for name, fit in fits.items()
    }
    ends = {name: f"{sum(part.size for part in parts):.0%} in all" for name, parts in rows.items()}
    title = "What an image costs more on 16 GPUs than on one, by the assumption of the fit"
    return parts_scene(rows, ends=ends, title=title, legend=legend | {"data": "shared input"})
