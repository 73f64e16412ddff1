"""Predicts for chapter 05 what a Llama holds in a training step, and what recomputation and offload would change.

The running example is Llama-3 8B in bf16 with AdamW, one sequence of 8,192 tokens. Everything here is computed by
formula (`helpers.predict.memory`); nothing is measured. Names that end in `_scene` return a `Scene`, a picture.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from helpers.draw import memory_scene
from helpers.draw.scene import Scene
from helpers.predict.memory import activations, activations_per_layer, edge_activations, logits, model_states
from helpers.predict.memory.activations import recomputed_layer
from helpers.predict.memory.fine_tuning import adapter_params, layer_matrices, lora, qlora
from helpers.records import MemoryBreakdown
from helpers.specs import GPUS, LINKS, PRESETS, ModelSpec, Plan

LLAMA = PRESETS["llama3-8b"]
WEIGHTS = MemoryBreakdown(parameters=model_states(LLAMA.num_params, Plan()).parameters)
H100_BYTES = GPUS["H100"].memory
REACHED_SHARE = 0.4  # of the peak FLOP/s: what a good training run reaches
PCIE_5 = 2 * LINKS["PCIe 4 x16"].bandwidth  # bytes per second in one direction: each generation doubles the last


def weights_scene() -> Scene:
    """The weights of Llama-3 8B in bf16 beside the memory of an H100."""
    title = "Llama-3 8B in bf16: the weights alone"
    return memory_scene({"the weights": WEIGHTS}, capacity=H100_BYTES, capacity_name="one H100", title=title)


def states_bars() -> Scene:
    """The model states of Llama-3 8B in mixed precision and in fp32, with the memory of an H100."""
    names = {"mixed precision": "mixed", "fp32": "fp32"}
    states = {name: model_states(LLAMA.num_params, Plan(precision=precision)) for name, precision in names.items()}
    title = "The model states of Llama-3 8B"
    return memory_scene(states, capacity=H100_BYTES, capacity_name="one H100", title=title)


def step_on_one_gpu(plan: Plan, *, chunked: bool = False, model: ModelSpec = LLAMA) -> MemoryBreakdown:
    """Bytes of a step on one rank: model states, activations, and as temporaries the fp32 logits and their gradient.

    With recomputation, the activations of the one layer that backward recomputes are added. chunked: without logits.
    """
    kept = activations(model, plan) + edge_activations(model, plan) + recomputed_layer(model, plan)
    loss = 0 if chunked else 2 * logits(model, plan)
    return replace(model_states(model.num_params, plan), activations=kept, temporaries=loss)


def fitting_scene(ways: dict[str, MemoryBreakdown]) -> Scene:
    """One bar per way to train Llama-3 8B at 8,192 tokens, with the memory of an H100."""
    title = "One rank's step of Llama-3 8B, 8,192 tokens, predicted"
    return memory_scene(ways, capacity=H100_BYTES, capacity_name="one H100", title=title)


@dataclass(frozen=True)
class RecomputeAndCopyTimes:
    """Milliseconds per layer and sequence on an H100: one forward again, or the copy of what it keeps, one way."""

    recompute: float
    offload: float


def offload_or_recompute(name: str) -> RecomputeAndCopyTimes:
    """Time to recompute one layer, and to copy its activations over PCIe 5, for the preset of this name.

    Matrix products only, 2 operations per parameter and token, at 40 % of the peak; PCIe at its nominal rate.
    """
    model = PRESETS[name]
    operations = 2 * model.params_per_layer * model.seq
    num_bytes = activations_per_layer(model, Plan()) - activations_per_layer(model, Plan(recompute="full"))
    return RecomputeAndCopyTimes(operations / (REACHED_SHARE * GPUS["H100"].flops) * 1e3, num_bytes / PCIE_5 * 1e3)


def print_offload_or_recompute() -> None:
    """Print the times of `offload_or_recompute` for Llama-3 8B and 70B, as a table."""
    print(f"{'one layer, 8,192 tokens':24}{'recompute':>12}{'copy, one way':>16}")
    for name in ("llama3-8b", "llama3-70b"):
        times = offload_or_recompute(name)
        print(f"{name:24}{times.recompute:>9.0f} ms{times.offload:>13.0f} ms")


def fine_tuning_scene() -> tuple[Scene, str, float]:
    """The model states of Llama-3 8B, trained in three ways: the picture, a sentence on QLoRA, and LoRA's GB."""
    states = {
        "all weights": model_states(LLAMA.num_params, Plan()),
        "LoRA": lora(LLAMA, rank=16),
        "QLoRA": qlora(LLAMA, rank=16),
    }
    shapes = layer_matrices(LLAMA)
    adapters = adapter_params(LLAMA, rank=16, targets=tuple(shapes))
    rest = LLAMA.num_params - LLAMA.num_layers * sum(rows * columns for rows, columns in shapes.values())  # in 16 bits
    four_bits = states["QLoRA"].total - 2 * rest - 12 * adapters
    said = (
        f"QLoRA: {four_bits / 1e9:.1f} GB of matrices in 4 bits with their scales, {2 * rest / 1e9:.1f} GB of tables "
        f"and head in 16 bits, and {12 * adapters / 1e9:.1f} GB for its {adapters / 1e6:.0f} million adapter weights, "
        "12 bytes each (2 + 2 + 8, no master)."
    )
    scene = memory_scene(states, title="Model states of Llama-3 8B with AdamW; adapters of rank 16")
    return scene, said, states["LoRA"].total / 1e9
