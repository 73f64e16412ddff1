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
from helpers.specs import GPUS, PRESETS, ModelSpec, Plan

LLAMA = PRESETS["llama3-8b"]
WEIGHTS = MemoryBreakdown(parameters=model_states(LLAMA.num_params, Plan()).parameters)
H100_BYTES = GPUS["H100"].memory
REACHED_SHARE = 0.4  # of the peak FLOP/s: what a good training run reaches
PCIE_5 = 52.8e9  # bytes per second that an H100 copied to its host: github.com/NVIDIA/nvbandwidth/issues/24
LOSS_TENSORS = 3  # of the logits' shape in fp32, at the peak of PyTorch's cross entropy: log-softmax and two gradients
CHUNK_TOKENS = 256  # of the chunked loss


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
    """Bytes of a step on one rank: model states, activations, and as temporaries the tensors of the loss.

    With recomputation, the activations of the one layer that backward recomputes are added. chunked: whether the loss
    takes some tokens at a time.
    """
    kept = activations(model, plan) + edge_activations(model, plan) + recomputed_layer(model, plan)
    loss = chunked_loss_bytes(model) if chunked else LOSS_TENSORS * logits(model, plan)
    return replace(model_states(model.num_params, plan), activations=kept, temporaries=loss)


def chunked_loss_bytes(model: ModelSpec = LLAMA) -> int:
    """Bytes that the chunked loss holds: fp32 gradients of the head and of its input, and two tensors of a chunk."""
    gradients = (model.vocab + model.seq) * model.hidden
    return 4 * (gradients + 2 * CHUNK_TOKENS * model.vocab)


def kept_per_token(model: ModelSpec = LLAMA) -> dict[str, int]:
    """Part of a layer -> bytes per token that it keeps for backward, in bf16. The feed-forward part is gated."""
    kv_width = model.kv_heads * model.head_dim
    elements = {
        "inputs": 4 * model.hidden,  # of two norms, of attention and of the feed-forward part
        "attention": 2 * model.hidden + 2 * kv_width,  # queries and the output, keys and values
        "feed-forward": 3 * model.ffn,  # gate, up and their product
    }
    return {part: 2 * number for part, number in elements.items()}


def fitting_scene(ways: dict[str, MemoryBreakdown]) -> Scene:
    """One bar per way to train Llama-3 8B at 8,192 tokens, with the memory of an H100.

    A bar adds what need not exist at the same moment, such as gradients and the tensors of the loss: an upper bound.
    """
    title = "Llama-3 8B, one rank: predicted upper bounds"
    return memory_scene(ways, capacity=H100_BYTES, capacity_name="one H100", title=title)


@dataclass(frozen=True)
class ForwardAndCopyTimes:
    """Milliseconds of one layer and sequence on an H100: its forward, and the copy of what it keeps, one way."""

    forward: float
    copy: float

    @property
    def recompute_adds(self) -> float:
        """Recomputation runs the forward of the layer once more."""
        return self.forward

    @property
    def offload_adds(self) -> float:
        """The copy out hides behind forward, and the copy back behind backward, which takes twice as long."""
        return max(0, self.copy - self.forward) + max(0, self.copy - 2 * self.forward)


def layer_times(name: str) -> ForwardAndCopyTimes:
    """Times of one layer of the preset of this name: its forward, and the copy of its activations over PCIe 5.

    Matrix products at 40 % of the peak rate: 2 operations per parameter and token, and causal attention, which computes
    half of the map twice, for the scores and for the output. What the copy leaves out is the layer's input.
    """
    model = PRESETS[name]
    weights = 2 * model.params_per_layer * model.seq
    attention = 2 * model.num_heads * model.head_dim * model.seq**2
    num_bytes = activations_per_layer(model, Plan()) - activations_per_layer(model, Plan(recompute="full"))
    return ForwardAndCopyTimes(
        (weights + attention) / (REACHED_SHARE * GPUS["H100"].flops) * 1e3, num_bytes / PCIE_5 * 1e3
    )


def print_offload_or_recompute() -> None:
    """Print what recomputation and offload add to a layer of Llama-3 8B and 70B, as a table."""
    print(
        f"{'one layer, 8,192 tokens':25}{'forward':>9}{'copy, one way':>15}{'recompute adds':>16}{'offload adds':>14}"
    )
    for name in ("llama3-8b", "llama3-70b"):
        times = layer_times(name)
        columns = {9: times.forward, 15: times.copy, 16: times.recompute_adds, 14: times.offload_adds}
        print(f"{name:25}" + "".join(f"{number:>{width - 3}.0f} ms" for width, number in columns.items()))


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
        f"QLoRA stores {four_bits / 1e9:.1f} GB of matrices in 4 bits with their scales, and {2 * rest / 1e9:.1f} GB "
        f"of embedding, norms and head in 16 bits. Its {adapters / 1e6:.0f} million adapter weights take "
        f"{12 * adapters / 1e9:.1f} GB, 12 bytes each (2 + 2 + 8, without master weights)."
    )
    scene = memory_scene(states, title="Model states of Llama-3 8B with AdamW; adapters of rank 16")
    return scene, said, states["LoRA"].total / 1e9
