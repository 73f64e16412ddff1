"""Predicts the memory of fine-tuning: LoRA and QLoRA adapters, and the models that reinforcement learning holds.

LoRA (Hu et al. 2021, section 4): a frozen matrix (out, in) gets two trained ones beside it, (r, in) and (out, r). Only
these two have gradients and optimizer state. QLoRA (Dettmers et al. 2023) also keeps the frozen matrices of the layers
in 4 bits. Neither is made to save activations, because the gradient still runs through every layer. But autograd drops
the input of a frozen matrix that has no adapter: with adapters on query and value, a layer keeps a fifth (gated
feed-forward) to a third (GPT) less; with adapters on all matrices it keeps as much as before.

PPO as in Ouyang et al. 2022 (InstructGPT) holds four models: actor and critic are trained (model states by states.py,
16 bytes per parameter in mixed precision), reference and reward model only answer (2 bytes). GRPO (Shao et al. 2024,
DeepSeekMath, section 4) has no critic. All models are taken to have one size, and activations are left out. Generation
also needs a KV cache and fresh weights; their bytes and seconds are here too.
"""

from __future__ import annotations

from math import ceil

from helpers.predict.memory.states import model_states
from helpers.records import MemoryBreakdown
from helpers.records.checks import check_one_of
from helpers.specs import Link, ModelSpec, Plan
from helpers.specs.checks import check_counts, refuse_unmodelled_fields

# Weights that share one constant, and constants that share one constant of the second quantization.
QUANTIZED_BLOCK, CONSTANTS_BLOCK = 64, 256


def layer_matrices(model: ModelSpec) -> dict[str, tuple[int, int]]:
    """(in, out) of each matrix of a layer: "query", "key", "value", "projection", "up", "down", and "gate" if gated."""
    refuse_unmodelled_fields("LoRA", model)
    h, kv, ffn = model.hidden, model.kv_heads * model.head_dim, model.ffn
    shapes = {"query": (h, h), "key": (h, kv), "value": (h, kv), "projection": (h, h), "up": (h, ffn), "down": (ffn, h)}
    return {**shapes, "gate": (h, ffn)} if model.gated else shapes


def adapter_params(model: ModelSpec, *, rank: int, targets: tuple[str, ...] = ("query", "value")) -> int:
    """The number of trained parameters: rank * (in + out) for each target matrix of each layer.

    The default targets are the paper's. Raises ValueError for a rank below 1 or a matrix that a layer does not have.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"LoRA: rank is {rank!r}, but it must be a whole number of at least 1; 4 to 64 are common")
    shapes = layer_matrices(model)
    for target in targets:
        check_one_of("LoRA", "a target", target, tuple(shapes))
    return model.num_layers * rank * sum(sum(shapes[target]) for target in targets)


def lora(
    model: ModelSpec, *, rank: int, targets: tuple[str, ...] = ("query", "value"), master: bool = True
) -> MemoryBreakdown:
    """Bytes of model states with 16-bit frozen weights and AdamW on the adapters, on one GPU.

    2 bytes per frozen weight, and 2 + 2 + 12 per adapter parameter. master: whether the optimizer has an fp32 master
    copy of the adapters; without it they take 2 + 2 + 8.
    """
    return _states(2 * model.num_params, adapter_params(model, rank=rank, targets=targets), master)


def qlora(
    model: ModelSpec, *, rank: int, targets: tuple[str, ...] | None = None, double_quantization: bool = True,
    master: bool = False,
) -> MemoryBreakdown:  # fmt: skip
    """Bytes of model states with the layers' matrices in 4 bits and AdamW on 16-bit adapters, on one GPU.

    The default targets are all matrices. A weight takes 4 bits and its share of constants: 64 weights share one of 32
    bits, which makes 0.5 bits per weight. Double quantization stores the constants in 8 bits, with one more constant
    for 256 of them, which makes 0.127 bits (Dettmers et al. 2023, section 3). Token tables, head, norms and biases stay
    in 16 bits. By default there is no fp32 master copy of the adapters, because the paper's 780 GB for 65B without LoRA
    are 12 bytes per parameter, 2 + 2 + 8. Left out: the 16-bit copy of the matrix in use, and paging to the host.
    """
    quantized = model.num_layers * sum(rows * columns for rows, columns in layer_matrices(model).values())  # weights
    constant_bits = 8 + 32 / CONSTANTS_BLOCK if double_quantization else 32
    frozen = quantized * (4 + constant_bits / QUANTIZED_BLOCK) / 8 + 2 * (model.num_params - quantized)  # bytes
    names = tuple(layer_matrices(model)) if targets is None else targets
    return _states(frozen, adapter_params(model, rank=rank, targets=names), master)


def _states(frozen: float, adapters: int, master: bool) -> MemoryBreakdown:
    """The breakdown from the bytes of frozen weights and the number of adapter parameters."""
    weights, optimizer = ceil(frozen) + 2 * adapters, (12 if master else 8) * adapters
    return MemoryBreakdown(parameters=weights, gradients=2 * adapters, optimizer=optimizer, instant="between steps")


def rl_states(num_params: int, *, critic: bool = True, reward_model: bool = True, reference: bool = True) -> int:
    """Bytes of all models together before any sharding: 36 per parameter with all four, in mixed precision."""
    trained = model_states(num_params, Plan()).total * (2 if critic else 1)
    return trained + 2 * num_params * (reward_model + reference)


def kv_cache_bytes(model: ModelSpec, *, tokens: int, dtype_bytes: int = 2) -> int:
    """Bytes of keys and values that generation holds for `tokens` tokens, of all sequences together, on all ranks.

    Latent attention holds the compressed vector and the rotary columns of keys, which all heads share.
    """
    refuse_unmodelled_fields("kv_cache_bytes", model, names=("window",))
    columns = 2 * model.kv_heads * model.head_dim
    if model.latent is not None:
        columns = model.latent.kv_rank + model.latent.rope
    return tokens * model.num_layers * columns * dtype_bytes


def weight_sync_seconds(num_params: int, link: Link, *, num_links: int = 1, dtype_bytes: int = 2) -> float:
    """Seconds to send new weights to the side that generates, where each of `num_links` links carries its share once.

    A pipelined broadcast reaches any number of replicas in about this time. The latency counts for one message; the
    time to gather and re-shard weights is left out.
    """
    check_counts("weight_sync_seconds", num_links=num_links)
    return link.seconds(num_params * dtype_bytes / num_links)


def decode_seconds(num_params: int, memory_bandwidth: float, *, num_gpus: int = 1, dtype_bytes: int = 2) -> float:
    """The least seconds per generated token at batch 1: each GPU reads its part of the weights once.

    memory_bandwidth: bytes per second of one GPU.
    """
    return num_params * dtype_bytes / memory_bandwidth / num_gpus
