"""What a layer of attention sends when the sequence is cut over ranks: ring attention and Ulysses, in bytes.

b sequences of s tokens, N ranks with s/N tokens each; q and kv: numbers of a token's queries and of its keys (q = h; kv
is smaller with grouped queries). A rank sends in one layer's forward:
    ring      2 kv b s/N, N - 1 times: its keys and values travel round the ring while it computes
              (Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3)
    Ulysses   four all-to-alls of what a rank holds, queries, keys, values and the output: (2 q + 2 kv) b s/N (N - 1)/N
              (Jacobs et al. 2023, DeepSpeed Ulysses; they count 4 N h / P for what we call 4 s h / N)
Backward: the ring sends keys and values once more, and their gradients: twice forward's. Ulysses sends the gradients
of the four tensors back: as much as forward.
"""

from __future__ import annotations

from helpers.specs import ModelSpec
from helpers.specs.checks import check_plain


def ring_attention_bytes(
    model: ModelSpec, *, cp: int, batch: int = 1, dtype_bytes: int = 2, backward: bool = False
) -> float:
    """Bytes that one rank sends in one layer: forward, or with `backward=True` backward. `model.seq` tokens in all.

    Raises ValueError for a cp that does not divide the sequence.
    """
    block = 2 * _width(model, model.kv_heads) * batch * _tokens(model, cp) * dtype_bytes
    return (cp - 1) * block * (2 if backward else 1)


def ulysses_bytes(model: ModelSpec, *, cp: int, batch: int = 1, dtype_bytes: int = 2) -> float:
    """Bytes that one rank sends in one layer's forward; backward sends as much again.

    Where cp is above the key and value heads, these are repeated until each rank has one. Raises ValueError for a cp
    that does not divide the sequence or the heads: Ulysses cannot use more ranks than the model has query heads.
    """
    if model.num_heads % cp:
        raise ValueError(f"Ulysses: cp={cp} does not divide num_heads={model.num_heads}; choose a divisor, or the ring")
    numbers = 2 * _width(model, model.num_heads) + 2 * _width(model, max(model.kv_heads, cp))
    return numbers * batch * _tokens(model, cp) * dtype_bytes * (cp - 1) / cp


def tokens_to_hide(model: ModelSpec, *, flops: float, bandwidth: float, dtype_bytes: int = 2) -> float:
    """Tokens a rank needs for the ring's next block to arrive while it computes with this one, forward, no causal mask.

    c tokens against c take 4 c^2 q operations, a block has 2 c kv dtype_bytes bytes: c = flops / bandwidth with 16 bits
    and kv = q (Liu et al. 2023, section 3). flops: operations per second; bandwidth: bytes per second.
    """
    check_plain("context parallel", model, names=("window",))
    return flops * dtype_bytes * model.kv_heads / (2 * bandwidth * model.num_heads)


def _width(model: ModelSpec, heads: int) -> int:
    return heads * model.head_dim


def _tokens(model: ModelSpec, cp: int) -> int:
    check_plain("context parallel", model, names=("window",))
    if isinstance(cp, bool) or not isinstance(cp, int) or cp < 1 or model.seq % cp:
        raise ValueError(f"context parallel: cp={cp!r} does not divide seq={model.seq}; choose a divisor of it")
    return model.seq // cp
