"""Measures for chapter 05 what a step holds: states, one block, the peak, the loss, micro-batches, leaks, options.

`helpers/chapters/memory.py` has the experiment, `record_training`; the functions here run it and return what a cell of
the chapter shows. Names that end in `_scene` return a `Scene`, a picture, mostly with the numbers for `reveal`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from helpers.chapters.memory import (
    SMALL,
    STATE_KINDS,
    WIDE,
    WIDE_SPEC,
    activations_after_steps,
    identity,
    kept_for_backward,
    loss_and_gradients,
    loss_in_chunks,
    peak_by_torch,
    recomputed_work_scene,
    record_training,
    run_blocks_with,
    state_bytes_on,
)
from helpers.chapters.myths import recomputation_doubles_the_work
from helpers.draw import memory_scene
from helpers.draw.scene import Scene
from helpers.observe.equality import assert_equal
from helpers.observe.memory import MemoryRecorder
from helpers.predict.memory import model_states
from helpers.predict.memory.inventory import inventory
from helpers.predict.memory.states import bytes_per_parameter
from helpers.ranks import Ranks
from helpers.records import MemoryBreakdown
from helpers.specs import Plan
from helpers.workloads import GPT, GPTConfig, token_loss

FP32 = Plan(precision="fp32")
SHORT = 16  # tokens of a batch whose activations are small beside the model states
BLOCK_PARTS = {  # module of a block -> what it keeps
    "": "", "attention_norm": "both norms: their inputs", "feed_forward_norm": "both norms: their inputs",
    "attention.query": "q, k, v and up: their inputs", "feed_forward.up": "q, k, v and up: their inputs",
    "attention": "attention: q, k, v, output", "feed_forward": "GELU: its input",
    "feed_forward.down": "down: its input",
}  # fmt: skip


def measured_bytes_per_parameter(ranks: Ranks) -> float:
    """Count bytes of model states per parameter on 4 ranks under DDP, in mixed precision after a step, for 05.states.

    AssertionError where 1, 2, 3 or 4 ranks hold other bytes than `model_states` predicts.
    """
    for n in (1, 2, 3, 4):
        found = state_bytes_on(ranks[:n], "ours", "mixed")
        predicted = model_states(SMALL.num_parameters, Plan(dp=n))
        assert all(getattr(found, kind) == getattr(predicted, kind) for kind in STATE_KINDS), "to the byte"
    return found.total / SMALL.num_parameters


def instant_of_peak(recorder: MemoryRecorder) -> str:
    """Say when memory was highest, as a choice of 05.when."""
    instant = recorder.peak.instant
    return "when backward begins" if instant == "backward of the loss" else instant


def largest_tensors(recorder: MemoryRecorder) -> str:
    """The three largest tensors at the peak, as a list in Markdown."""
    lines = [
        f"- {one.num_bytes / 1e6:.2f} MB, shape {one.shape}: `{one.name}` of {one.module}"
        for one in recorder.largest(3)
    ]
    return "The three largest tensors at the peak:\n\n" + "\n".join(lines)


def peak_scene(recorder: MemoryRecorder) -> tuple[Scene, str, float, float]:
    """The peak of a batch of 512 tokens and of a batch of 16.

    recorder: of station B, which has 512 tokens. Returns the picture, a sentence on PyTorch's own meter, and the bytes
    of states per parameter at the peak of the small batch, predicted and measured.
    """
    small = record_training(replace(WIDE, context=SHORT), batch=1, steps=2).peak
    bars = {"512 tokens": recorder.peak, f"{SHORT} tokens": small}
    scene = memory_scene(bars, title="The peak, measured")
    mine, theirs = record_training(update=False).peak.total, peak_by_torch()
    assert abs(mine / theirs - 1) < 0.02
    meters = (
        f"For a step without optimizer, this course's meter says {mine / 1e6:.2f} MB and PyTorch's own, `MemTracker`, "
        f"says {theirs / 1e6:.2f} MB."
    )
    there = small.parameters + small.gradients + small.optimizer
    predicted = bytes_per_parameter(FP32)  # all gradients exist when backward ends
    return scene, meters, predicted, round(there * torch.float32.itemsize / small.parameters, 2)


def block_scene() -> tuple[Scene, int]:
    """What one block of the GPT keeps for backward, tensor by tensor.

    The picture, and how many times the block's input that is, as predicted. AssertionError where the list of tensors
    and the meter differ by a byte.
    """
    listed = inventory(WIDE_SPEC, Plan(precision="fp32", micro_batch=4))
    kept = kept_for_backward(WIDE)["blocks.1"]
    assert listed.by_module(2)["blocks.1"] == kept, "to the byte"
    block_input = 4 * WIDE_SPEC.seq * WIDE_SPEC.hidden * torch.float32.itemsize  # 4 sequences
    sizes: dict[str, int] = {}
    for row in listed.rows:
        if row.module.startswith("blocks.1."):
            name = BLOCK_PARTS[row.module.removeprefix("blocks.1.")]
            sizes[name] = sizes.get(name, 0) + row.num_bytes
    assert sum(sizes.values()) == kept
    bars = {f"{name} · {size / block_input:.0f} ×": MemoryBreakdown(activations=size) for name, size in sizes.items()}
    scene = memory_scene(bars, title="What one block keeps for backward, and how many inputs that is")
    return scene, round(listed.by_module(2)["blocks.1"] / block_input)


def recomputed_work(ranks: Ranks) -> tuple[Scene, str, str]:
    """Draw how much more work a step is with all blocks recomputed; a sentence, and a choice of 05.work."""
    ratio = recomputation_doubles_the_work(ranks)["ratio"]
    measured = "a third more" if abs(ratio - 4 / 3) < 0.02 else f"{ratio:.2f}"
    return recomputed_work_scene(), f"Counted on a GPT: {ratio:.2f} times the operations.", measured


def accumulation_scene(peaks: dict[int, MemoryBreakdown]) -> tuple[Scene, float, float]:
    """The peak of a step by number of micro-batches, and of the most of them in MB, as predicted and as measured."""
    whole = peaks[1].activations + peaks[1].temporaries
    predicted = model_states(WIDE_SPEC.num_params, FP32).total + whole / max(peaks)
    bars = {f"{m} micro-batch{'es' * (m > 1)}": peak for m, peak in peaks.items()}
    scene = memory_scene(bars, title="The peak of a step, measured")
    return scene, round(predicted / 1e6, 1), round(peaks[max(peaks)].total / 1e6, 2)


def peaks_scene(peaks: dict[str, MemoryBreakdown]) -> tuple[Scene, str]:
    """One bar per way to run forward and backward, and a sentence on where the last peak is.

    AssertionError where the chunked loss gives other gradients than the plain one.
    """
    assert_equal(
        loss_and_gradients(), loss_and_gradients(loss=loss_in_chunks), atol={"*key.bias*": 1e-9}
    )  # 0 in theory
    text = f"With both, the peak is in the {peaks['both'].instant}, when many gradients exist already."
    return memory_scene(peaks, title="The peak of forward and backward, measured"), text


def leak_scene() -> tuple[Scene, str]:
    """Draw what four ways to collect losses hold after four steps.

    Returns also the one that holds all four graphs, as a choice of 05.append.
    """
    versions = {
        "training, append(loss)": dict(keep=identity, backward=True),
        "evaluation, append(loss)": dict(keep=identity),
        "evaluation, append(loss.item())": dict(keep=torch.Tensor.item),
        "no_grad, append(loss)": dict(keep=identity, grad=False),
    }
    found = {name: activations_after_steps(**way) for name, way in versions.items()}
    (grows,) = [name for name, sizes in found.items() if sizes[-1] > 3.9 * sizes[0] > 0]
    bars = {name.removesuffix(")").replace("append(", ""): sizes[-1] for name, sizes in found.items()}
    bars = {name: MemoryBreakdown(activations=size) for name, size in bars.items()}
    return memory_scene(bars, title="Activations held after four steps, measured"), grows


def print_selective(policy: Callable) -> None:
    """Print what a GPT keeps for backward, and the operations of its step: plain, full and selective recomputation.

    policy: as torch's `create_selective_checkpoint_contexts` takes it. Operations are those that torch counts, relative
    to the plain step.
    """
    context = partial(create_selective_checkpoint_contexts, policy)
    ways = {
        "everything kept": lambda gpt: None,
        "products kept": run_blocks_with(torch_checkpoint, use_reentrant=False, context_fn=context),
        "only inputs kept": run_blocks_with(torch_checkpoint, use_reentrant=False),
    }
    plain = _operations(ways["everything kept"])
    for name, prepare in ways.items():
        kept = kept_for_backward(WIDE, prepare).items()
        in_blocks = sum(num_bytes for module, num_bytes in kept if module.startswith("blocks."))
        print(f"{name:18}{in_blocks / 1e6:6.1f} MB{_operations(prepare) / plain:8.2f} times the operations")


def _operations(prepare: Callable[[nn.Module], object]) -> int:
    """Floating-point operations of forward and backward of a small GPT, as torch counts them."""
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(vocab_size=8, context=16, num_layers=4, num_heads=2, hidden=64))
    prepare(gpt)
    tokens = torch.zeros(2, 16, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        token_loss(gpt(tokens), tokens).backward()
    return counter.get_total_flops()
