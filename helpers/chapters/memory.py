"""Runs chapter 05: the memory of a training step, and what each way to save memory changes.

`record_training` is the one experiment: a small GPT with a vocabulary of 2,048, in fp32, on four sequences of 128
tokens. The others change one thing in it. `ranks.run(f)` calls f on every rank of a pool of processes; functions that
begin with "On a rank" are for it. Names that end in `_scene` measure, and return a `Scene`, a picture.

`record_memory(model, optimizer)` counts bytes by kind: a `MemoryBreakdown` has parameters, gradients, optimizer,
buffers, activations and temporaries, at a marked instant (`.at(mark)`) or at the peak (`.peak`).
`characters().batch(...)` returns tokens and targets of a small text corpus.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint_sequential as torch_checkpoint_sequential

from helpers.draw import Part, parts_scene
from helpers.draw.palette import kind_word
from helpers.draw.scene import Scene, stacked_scene
from helpers.observe.equality import assert_equal, state_of
from helpers.observe.memory import MemoryRecorder, record_memory
from helpers.observe.training import same_on_every_rank
from helpers.parallel.amp import MasterWeights
from helpers.parallel.ddp import DistributedDataParallel
from helpers.parallel.memory import (
    GPU,
    Budget,
    OffloadedOptimizer,
    OutOfBudget,
    checkpoint_sequential,
    chunked_token_loss,
    offload_activations,
    recompute_blocks,
)
from helpers.parallel.shared.recompute import checkpoint
from helpers.predict.memory import activations_per_layer
from helpers.predict.memory.activations import best_segments
from helpers.quantities.units import format_bytes
from helpers.ranks import RankError, Ranks
from helpers.records import MEMORY_KINDS, MemoryBreakdown
from helpers.specs import PRESETS, Plan
from helpers.workloads import GPT, GPTConfig, characters, token_loss

SMALL = GPTConfig(vocab_size=68, context=64, num_layers=4, num_heads=4, hidden=96)  # its states under DDP are counted
SIZES = dict(vocab_size=2048, context=128, num_layers=4, num_heads=4, hidden=128)
WIDE, WIDE_SPEC = GPTConfig(**SIZES), GPTConfig(**SIZES).spec
STATE_KINDS = ("parameters", "gradients", "optimizer")  # fields of MemoryBreakdown that are model states
CARD_BYTES = 64e6  # memory of the practice card, a simulated GPU


# ---- what is held of the model itself ----


def state_bytes(wrap: str = "ours", precision: str = "fp32") -> MemoryBreakdown:
    """On a rank, after the third backward: weights, gradients, optimizer state, and as buffers the buckets of DDP.

    wrap: as `wrapped` takes it. precision: "fp32", or "mixed" for bf16 weights with fp32 master weights. A few bytes of
    activations that the loss leaves are not counted.
    """
    torch.manual_seed(0)
    gpt = GPT(SMALL) if precision == "fp32" else GPT(SMALL).bfloat16()
    model = wrapped(gpt, wrap)
    optimizer = AdamW(gpt.parameters()) if precision == "fp32" else MasterWeights(gpt.parameters(), AdamW)
    tokens, targets = characters().batch(0, 4, 8, rank=dist.get_rank(), world_size=dist.get_world_size())
    with record_memory(model, optimizer) as recorder:
        for step in (1, 2, 3):
            optimizer.zero_grad()
            token_loss(model(tokens), targets).backward()
            recorder.mark(f"backward {step}")
            optimizer.step()
    # torch's reducer allocates its buckets by `empty`, so they count as activations of the wrapper, and are looked up.
    # 1000 is more than there are storages.
    made = [one for one in recorder.largest(1000, "backward 3") if one.module == "DistributedDataParallel"]
    buckets = sum(one.num_bytes for one in made if one.name == "empty")
    return replace(recorder.at("backward 3"), activations=0, temporaries=0, buffers=buckets)


def wrapped(gpt: nn.Module, wrap: str) -> nn.Module:
    """The model "alone", under our DDP ("ours"), under "torch"'s, or under torch's with gradients as "views"."""
    if wrap in ("torch", "views"):
        return nn.parallel.DistributedDataParallel(gpt, gradient_as_bucket_view=wrap == "views")
    return DistributedDataParallel(gpt) if wrap == "ours" else gpt


def state_bytes_on(ranks: Ranks, *arguments: str) -> MemoryBreakdown:
    """`state_bytes` on these ranks. RuntimeError where two ranks store different amounts."""
    return same_on_every_rank(ranks.run(state_bytes, *arguments))


# ---- one experiment ----


def record_training(
    config: GPTConfig = WIDE,
    *,
    batch: int = 4,
    micro_batches: int = 1,
    steps: int = 1,
    prepare: Callable[[nn.Module], object] | None = None,
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = lambda gpt, x, y: token_loss(gpt(x), y),
    update: bool = True,
    device: str = "cpu",
) -> MemoryRecorder:
    """Train `steps` steps and return what was recorded.

    batch: sequences per step, which `micro_batches` divides. prepare(gpt): changes the model first. loss(gpt, tokens,
    targets): the loss of a micro-batch. update: whether the optimizer steps.
    """
    torch.manual_seed(0)
    gpt = GPT(config).to(device)
    optimizer = AdamW(gpt.parameters(), foreach=False)  # foreach would need temporaries for all parameters at once
    if prepare:
        prepare(gpt)
    tokens, targets = (one.to(device) for one in characters().batch(0, batch, config.context))
    with record_memory(gpt, optimizer) as recorder:
        for _ in range(steps):
            optimizer.zero_grad()
            for x, y in zip(tokens.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
                (loss(gpt, x, y) / micro_batches).backward()
            if update:
                optimizer.step()
    return recorder


def peak_on_card(batch: int) -> MemoryBreakdown:
    """On a rank with a practice card, a simulated GPU: the peak of two steps.

    Raises torch.OutOfMemoryError if they do not fit.
    """
    return record_training(batch=batch, steps=2, device="card").peak


def peak_by_torch() -> int:
    """Bytes at the peak of `record_training(update=False)`, by PyTorch's own meter, which is private."""
    torch.manual_seed(0)
    gpt, tracker = GPT(WIDE), MemTracker()
    tokens, targets = characters().batch(0, 4, WIDE.context)
    tracker.track_external(gpt)
    with tracker:
        token_loss(gpt(tokens), targets).backward()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def loss_in_chunks(gpt: GPT, x: Tensor, y: Tensor) -> Tensor:
    """The loss, computed for 128 tokens at a time."""
    return chunked_token_loss(gpt.features(x), gpt.head.weight, y, chunk_tokens=128)


def kept_for_backward(config: GPTConfig, prepare: Callable[[nn.Module], object] = lambda gpt: None) -> dict[str, int]:
    """Block, or other module -> bytes of its activations when forward has ended. prepare(gpt): changes it first."""
    gpt = GPT(config)
    prepare(gpt)
    tokens, targets = characters().batch(0, 4, config.context)
    with record_memory(gpt) as recorder:
        loss = token_loss(gpt(tokens), targets)
        recorder.mark("forward")
        loss.backward()
    kept: dict[str, int] = {}
    for module, num_bytes in recorder.by_module(name="forward").items():
        owner = ".".join(module.split(".")[:2])  # "blocks.0" for "blocks.0.attention"
        kept[owner] = kept.get(owner, 0) + num_bytes
    return kept


def checkpointed_chain(num_segments: int, run: Callable = checkpoint_sequential) -> MemoryBreakdown:
    """The peak of 64 layers, each of which keeps only its input, in so many checkpointed segments.

    run: our `checkpoint_sequential` or PyTorch's.
    """
    layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(64)))
    x = torch.ones(1024, 16, requires_grad=True)
    with record_memory(layers) as recorder:
        run(layers, num_segments, x).sum().backward()
    return recorder.peak


def loss_and_gradients(prepare: Callable[[nn.Module], object] = lambda gpt: None, loss: Callable | None = None) -> dict:
    """Loss, weights and gradients of one backward of a GPT with dropout, in float64, by name."""
    torch.manual_seed(0)
    gpt = GPT(GPTConfig.tiny(dropout=0.2)).double()
    prepare(gpt)
    tokens, targets = characters().batch(0, 8, 32)
    torch.manual_seed(1)  # the dropout masks
    value = loss(gpt, tokens, targets) if loss else token_loss(gpt(tokens), targets)
    value.backward()
    return {"loss": value.detach()} | state_of(gpt)


def run_blocks_with(run: Callable, **options) -> Callable[[nn.Module], None]:
    """A `prepare` after which each block runs as `run(block, x, **options)`.

    run: a function such as torch's checkpoint.
    """

    def prepare(gpt: nn.Module) -> None:
        for block in gpt.blocks:
            block.forward = partial(run, block.forward, **options)

    return prepare


# ---- a device that can run out, and a list that grows ----


def train_within_budget(num_bytes: int, *, activations: bool = False, optimizer: bool = False, batch: int = 4):
    """Two steps on a simulated device of so many bytes. Returns weights and gradients, and the device, a `Budget`.

    activations, optimizer: whether these are offloaded to the host. Raises OutOfBudget where the steps do not fit.
    """
    torch.manual_seed(0)
    gpt = GPT(WIDE)
    tokens, targets = characters().batch(0, batch, 128)
    with Budget(num_bytes, gpt.parameters()) as budget:
        adam = OffloadedOptimizer(gpt.parameters(), AdamW, budget) if optimizer else None
        adam = adam or AdamW(gpt.parameters(), foreach=False)
        for _ in range(2):
            adam.zero_grad()
            with offload_activations(budget, gpt) if activations else nullcontext():
                loss = token_loss(gpt(tokens), targets)
            loss.backward()
            adam.step()
    return state_of(gpt), budget


def activations_after_steps(
    keep: Callable[[Tensor], object], *, backward: bool = False, grad: bool = True
) -> list[int]:
    """Bytes of activations after each of four steps, where `keep(loss)` of each step goes into a list.

    backward: whether each step runs backward, which frees the graph. grad: whether a graph is recorded at all.
    """
    torch.manual_seed(0)
    gpt, losses = GPT(GPTConfig.tiny()), []
    tokens, targets = characters().batch(0, 16, 32)
    with record_memory(gpt) as recorder, torch.set_grad_enabled(grad):
        for step in range(4):
            loss = token_loss(gpt(tokens), targets)
            if backward:
                gpt.zero_grad()
                loss.backward()
            losses.append(keep(loss))
            del loss  # the name would hold the graph of the last step
            recorder.mark(f"step {step}")
    return [recorder.at(f"step {step}").activations for step in range(4)]


def identity(loss: Tensor) -> Tensor:
    """For `keep`: the loss with its graph."""
    return loss


# ---- what the chapter draws ----


def percent(share: float) -> str:
    """A share as "70 %", with a space as in the chapter's text."""
    return f"{share:.0%}".replace("%", " %")


def attention_maps_scene() -> tuple[Scene, str]:
    """Draw what a block keeps for backward with and without attention maps, and find the choice of 05.maps, as "70 %".

    "materialized" attention stores the map of all tokens by all tokens; "flash" attention never does.
    """
    gpt3, ways = PRESETS["gpt3-175b"], (dict(attention="materialized"), dict(attention="flash"))
    layer = [activations_per_layer(gpt3, Plan(**way)) for way in ways]
    # In units of tokens x hidden, which Korthikanti et al. 2022 use: 34 without the maps, and 80 for GPT-3's maps.
    assert [num_bytes / (gpt3.seq * gpt3.hidden) for num_bytes in layer] == [34 + 80, 34]
    blocks = {}
    for context in (128, 512):
        sizes = dict(vocab_size=68, context=context, num_layers=2, num_heads=4, hidden=64)
        blocks[f"{context} tokens"] = [kept_for_backward(GPTConfig(**sizes, **way))["blocks.1"] for way in ways]
    scene = _maps_and_rest(blocks, "One block of a small GPT, kept for backward, measured")
    return scene, percent(1 - layer[1] / layer[0])


def _maps_and_rest(kept: dict[str, list[int]], title: str) -> Scene:
    """One bar per name: what stays with flash attention, and what the maps add to it. kept: with maps, with flash."""
    sizes, ends = {}, {}
    for name, (with_maps, flash) in kept.items():
        sizes[name] = {"activations": flash, "buffers": with_maps - flash}
        ends[name] = f"{format_bytes(with_maps)}, maps {percent(1 - flash / with_maps)}"
    legend = {"activations": "all the rest", "buffers": "attention maps"}  # kinds are colours here
    return parts_scene(_bars(sizes, format_bytes), title=title, ends=ends, legend=legend)


def _bars(sizes: dict[str, dict[str, float]], text: Callable = lambda size: "") -> dict[str, list[Part]]:
    """Rows for `parts_scene` from {bar: {kind: size}}. text: what stands in a part of this size."""
    return {
        name: [Part(text=text(size), kind=kind, size=size) for kind, size in by_kind.items()]
        for name, by_kind in sizes.items()
    }


def recomputed_work_scene() -> Scene:
    """The work of a step of three blocks, in forwards of one block, with everything kept and with all recomputed."""
    work, rows = {"forward": 1, "backward": 2, "weight_grad": 1}, {}
    kinds_in_backward = {"everything kept": ["backward"], "every block recomputed": ["weight_grad", "backward"]}
    for name, kinds in kinds_in_backward.items():  # the colour of "weight_grad" means "forward again"
        order = [("forward", block) for block in range(3)] + [(kind, block) for block in (2, 1, 0) for kind in kinds]
        rows[name] = [Part(text=f"{block}", kind=kind, size=work[kind]) for kind, block in order]
    return parts_scene(
        rows,
        title="The work of a step of three blocks, 0 to 2",
        ends={name: f"{sum(part.size for part in parts)} forwards" for name, parts in rows.items()},
        legend={"forward": "forward", "backward": "backward", "weight_grad": "forward again"},
    )


def forgotten_random_state_scene() -> tuple[Scene, str, str]:
    """How wrong gradients are when recomputation draws other dropout masks, because the random state was not restored.

    A picture, a sentence, and which results are wrong, as a choice of 05.lost_state.
    """
    plain, differences = loss_and_gradients(), {}
    for name, run in {"ours": checkpoint, "PyTorch's": partial(torch_checkpoint, use_reentrant=False)}.items():
        assert_equal(plain, loss_and_gradients(run_blocks_with(run)))  # with the random state: the same
        wrong = loss_and_gradients(run_blocks_with(run, preserve_rng_state=False))
        differences[name] = {key: ((wrong[key] - plain[key]).norm() / plain[key].norm()).item() for key in plain}
    ours = differences["ours"]  # by name: the norm of the error, relative to the right tensor's norm
    assert {key for key in plain if ours[key]} == {key for key in plain if differences["PyTorch's"][key]}
    prefixes = {"the loss": "loss", "the last norm": "final_norm", "block 1": "blocks.1", "block 0": "blocks.0"}
    # The gradient of attention's key bias is left out: it is zero in theory, so its relative error means nothing.
    worst = {
        name: max(one for key, one in ours.items() if key.startswith(prefix) and "key.bias" not in key)
        for name, prefix in prefixes.items()
    }
    scene = parts_scene(
        _bars({name: {"gradients": one} for name, one in worst.items()}),
        title="Relative error of the loss, and of the worst gradient of each part",
        ends={name: percent(one) if one else "equal to the last bit" for name, one in worst.items()},
    )
    gradients = [key for key in plain if key.endswith(".grad")]
    right = [key for key in gradients if not ours[key]]
    count = f"{len(gradients) - len(right)} of {len(gradients)} gradients are wrong"
    if ours["loss"]:
        which = "the loss and all gradients"
    else:
        is_last_norm = bool(right) and all(key.startswith("final_norm") for key in right)
        which = "all gradients but the last norm's" if is_last_norm else "all gradients"
    return scene, f"{count}, with our checkpoint and with PyTorch's alike.", which


def full_card_scene(bytes_per_sequence: float) -> tuple[Scene, str, int, int]:
    """Train ever more sequences on a practice card of 64 MB until they do not fit. A practice card is a simulated GPU.

    A picture of the peaks, the first line of the error, and the smallest number of sequences that does not fit, as
    predicted and as measured.
    """
    peaks: dict[str, MemoryBreakdown] = {}
    with Ranks(1, device="card", memory="64 MB", quiet=True) as card:
        for batch in range(4, 9):
            try:
                (peaks[f"{batch} sequences"],) = card.run(peak_on_card, batch)
            except RankError as error:
                message = str(error).splitlines()[0]
                break
    states = 12 * WIDE_SPEC.num_params  # fp32 weights and AdamW's two moments: at the peak there is no gradient yet
    refused, asked = f"{batch} sequences", states + batch * bytes_per_sequence
    kinds = [kind for kind in MEMORY_KINDS if any(getattr(one, kind) for one in peaks.values())]
    bars = _bars({name: {kind: getattr(one, kind) for kind in kinds} for name, one in peaks.items()})
    ends = {name: f"{one.total / 1e6:.1f} MB, fits" for name, one in peaks.items()}
    text = f"{states / 1e6:.2f} + {batch} × {bytes_per_sequence / 1e6:.2f} MB"
    bars[refused] = [Part(text=text, kind="waiting", size=asked)]
    ends[refused] = f"{asked / 1e6:.1f} MB, does not fit"
    legend = {kind: kind_word(kind) for kind in kinds} | {"waiting": "predicted, refused"}
    title = "The peak of two steps; dashed: the card's 64 MB"
    scene = parts_scene(bars, title=title, ends=ends, limits=dict.fromkeys(bars, CARD_BYTES), legend=legend)
    return scene, message, int((CARD_BYTES - states) / bytes_per_sequence) + 1, batch


def segments_scene() -> tuple[Scene, int, int]:
    """The peak by number of checkpointed segments, of a chain of 64 layers and of a GPT of 12 blocks.

    Returns the picture, and the number of segments with the lowest peak for the chain, as predicted and as measured.
    With n segments, the peak is n inputs of segments and the 64 / n inputs inside the segment that is recomputed.
    AssertionError where a measured peak is another, or torch's differs.
    """
    counts, unit = (4, 8, 16), 4 * 1024 * 16  # unit: bytes of one layer's input, of which 0.01 is 655
    inputs = {n: _held_by_backward(checkpointed_chain(n)) / unit for n in counts}
    assert all(abs(peak - (n + 64 / n)) < 0.01 for n, peak in inputs.items()), "n + 64/n"
    by_torch = checkpointed_chain(8, partial(torch_checkpoint_sequential, use_reentrant=False))
    assert abs(_held_by_backward(by_torch) / unit - 16) < 0.01
    # Where the inside of a layer is 17 times as large as its input, as in a GPT block, more segments are best.
    assert best_segments(33, inside_bytes=17) == 33 and best_segments(64, inside_bytes=17) == 32  # of 33, 64 layers
    thin, gpts = GPTConfig(vocab_size=68, context=64, num_layers=12, num_heads=4, hidden=32), {}
    for every in (2, 1):
        run = record_training(thin, batch=16, prepare=partial(recompute_blocks, every=every), update=False)
        num_segments, bytes_per_input = 12 // every, 16 * 64 * 32 * 4  # batch x tokens x hidden x fp32
        gpts[f"{num_segments} segments"] = num_segments * bytes_per_input, _held_by_backward(run.peak)
    layers = {f"{n} segments": (n * unit, inputs[n] * unit) for n in counts}
    titles = {"64 linear layers: the peak": layers, "12 blocks of a GPT: the peak": gpts}
    legend = {"activations": "inputs of segments", "temporaries": "the rest: the inside of the segment that runs"}
    legends = (legend, {})  # of the first picture only; the second has the same colours
    scenes = [_segment_bars(peaks, title, one) for (title, peaks), one in zip(titles.items(), legends, strict=True)]
    scene = stacked_scene(*scenes, title="The peak by segments")
    return scene, best_segments(64), min(inputs, key=inputs.get)


def _held_by_backward(peak: MemoryBreakdown) -> int:
    """Bytes at this peak, without the model states."""
    return peak.activations + peak.temporaries


def _segment_bars(peaks: dict[str, tuple[int, float]], title: str, legend: dict[str, str]) -> Scene:
    """One bar per name. peaks: bytes of the segments' inputs, and of the whole peak."""
    sizes = {name: {"activations": inputs, "temporaries": peak - inputs} for name, (inputs, peak) in peaks.items()}
    ends = {name: format_bytes(peak) for name, (_, peak) in peaks.items()}
    return parts_scene(_bars(sizes), title=title, ends=ends, legend=legend)


def offload_scene() -> tuple[Scene, str, float]:
    """Two steps on simulated devices that are too small, with activations or the optimizer on the host.

    A picture of the peaks, a list of what crosses the bus between GPU and host, and the MB per step that gradients and
    weights of the offloaded optimizer put on the bus.
    """
    bars, ends, limits, lines = {}, {}, {}, []
    for name, capacity, batch in [("activations", 35_000_000, 4), ("optimizer", 15_000_000, 1)]:
        expected, unlimited = train_within_budget(10**9, batch=batch)
        try:
            train_within_budget(capacity, batch=batch)
        except OutOfBudget:
            refused = f"do not fit in {capacity / 1e6:.0f} MB"
        state, budget = train_within_budget(capacity, batch=batch, **{name: True})
        assert_equal(expected, state)
        stays, leaves = budget.peak(GPU), unlimited.peak(GPU) - budget.peak(GPU)
        rows = {"all on the GPU": {"other": stays, name: leaves}, f"{name} on the host": {"other": stays}}
        for (row, sizes), end in zip(rows.items(), (refused, "fit"), strict=True):
            row = f"batch {batch}, {row}"
            bars[row], limits[row], ends[row] = sizes, capacity, f"{sum(sizes.values()) / 1e6:.1f} MB {end}"
        crossed = budget.bytes_by_purpose()  # purpose -> bytes between GPU and host in both steps
        # A purpose with "once" in its name is of the start. The others are of two steps, hence 2e6 and not 1e6.
        in_each = [f"{what} {size / 2e6:.1f} MB" for what, size in crossed.items() if "once" not in what]
        before = [f"; at the start, {what} {size / 1e6:.1f} MB" for what, size in crossed.items() if "once" in what]
        lines.append("- crossed in each step: " + ", ".join(in_each) + "".join(before))
    legend = {"other": "stays", "activations": "activations that leave", "optimizer": "AdamW's state, which leaves"}
    title = "The peak on the simulated device; dashed: what it has"
    scene = parts_scene(_bars(bars), title=title, ends=ends, limits=limits, legend=legend)
    return scene, "\n".join(lines), (crossed["gradients to the host"] + crossed["weights back"]) / 2e6
