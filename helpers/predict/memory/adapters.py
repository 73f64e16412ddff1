"""LoRA and QLoRA: what fine-tuning through small adapters leaves of the model states, in bytes on one GPU.

LoRA (Hu et al. 2021, section 4): a frozen matrix (out, in) gets two trained ones beside it, (r, in) and (out, r). Only
these have gradients and optimizer state. QLoRA (Dettmers et al. 2023) also keeps the frozen matrices of the layers in
4 bits. Neither is made to save activations: the gradient still runs through every layer. But autograd drops the input
of a frozen matrix that has no adapter: with adapters on query and value a fifth (gated feed-forward) to a third (GPT)
of what a layer keeps goes; with adapters on all matrices nothing.
"""

from __future__ import annotations

from math import ceil

from helpers.records import MemoryBreakdown
from helpers.records.checks import check_one_of
from helpers.specs import ModelSpec
from helpers.specs.checks import check_plain

ATTENTION = ("query", "key", "value", "projection")
QUANTIZED_BLOCK, CONSTANTS_BLOCK = 64, 256  # weights that share a constant, constants that share one of their own


def matrices(model: ModelSpec) -> dict[str, tuple[int, int]]:
    """(in, out) of each matrix of a layer: "query", "key", "value", "projection", "up", "down", and "gate" if gated."""
    check_plain("LoRA", model)
    h, kv, ffn = model.hidden, model.kv_heads * model.head_dim, model.ffn
    shapes = {"query": (h, h), "key": (h, kv), "value": (h, kv), "projection": (h, h), "up": (h, ffn), "down": (ffn, h)}
    return {**shapes, "gate": (h, ffn)} if model.gated else shapes


def adapter_params(model: ModelSpec, *, rank: int, targets: tuple[str, ...] = ("query", "value")) -> int:
    """Trained parameters: rank * (in + out) for each target matrix of each layer. Default targets: the paper's.

    Raises ValueError for a rank below 1 or a matrix that a layer does not have.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"LoRA: rank is {rank!r}, but it must be a whole number of at least 1; 4 to 64 are common")
    shapes = matrices(model)
    for target in targets:
        check_one_of("LoRA", "a target", target, tuple(shapes))
    return model.num_layers * rank * sum(sum(shapes[target]) for target in targets)


def lora(
    model: ModelSpec, *, rank: int, targets: tuple[str, ...] = ("query", "value"), master: bool = True
) -> MemoryBreakdown:
    """Model states with 16-bit frozen weights and AdamW on the adapters: 2 bytes a weight, 2 + 2 + 12 an adapter's.

    master: whether the optimizer holds an fp32 copy of the adapters, else 2 + 2 + 8.
    """
    return _states(2 * model.num_params, adapter_params(model, rank=rank, targets=targets), master)


def qlora(
    model: ModelSpec, *, rank: int, targets: tuple[str, ...] | None = None, double_quantization: bool = True,
    master: bool = False,
) -> MemoryBreakdown:  # fmt: skip
    """Model states with the layers' matrices in 4 bits and AdamW on 16-bit adapters. Default targets: all matrices.

    A weight takes 4 bits and its share of constants: one of 32 bits for 64 weights, 0.5 bits; quantized once more to
    8 bits with a constant for 256 of them, 0.127 bits (Dettmers et al. 2023, section 3). Token tables, head, norms and
    biases stay in 16 bits. By default no fp32 copy of the adapters: the paper's 780 GB for 65B without LoRA are
    12 bytes a parameter, 2 + 2 + 8. Left out: the 16-bit copy of the matrix in use, and paging to the host.
    """
    quantized = model.num_layers * sum(rows * columns for rows, columns in matrices(model).values())
    constant = 8 + 32 / CONSTANTS_BLOCK if double_quantization else 32
    frozen = quantized * (4 + constant / QUANTIZED_BLOCK) / 8 + 2 * (model.num_params - quantized)
    names = tuple(matrices(model)) if targets is None else targets
    return _states(frozen, adapter_params(model, rank=rank, targets=names), master)


def _states(frozen: float, adapters: int, master: bool) -> MemoryBreakdown:
    return MemoryBreakdown(
        parameters=ceil(frozen) + 2 * adapters,
        gradients=2 * adapters,
        optimizer=(12 if master else 8) * adapters,
        instant="between steps",
    )
