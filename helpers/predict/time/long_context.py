"""Predicts when context parallelism pays: which method sends least and hides its messages, and what long prompts cost.

traffic/context_parallel.py has the bytes of each method, and flops.py the imbalance of causal attention. Letters: N
ranks (cp), s tokens, c = s/N tokens of a rank, h hidden, q and kv elements of a token's queries and of its keys,
F operations and B bytes per second. Sources:
    Liu et al. 2023, Ring Attention with Blockwise Transformers (arXiv 2310.01889), section 3, tables 1 and 2
    Yang et al. 2024, Context Parallelism for Scalable Million-Token Inference (arXiv 2411.01783), equations 1 to 3,
    algorithm 1, table 4, appendix A
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from helpers.predict.memory.activations import context_buffers
from helpers.predict.time.flops import attention_imbalance
from helpers.predict.time.kernels import flash_seconds
from helpers.predict.traffic.context_parallel import (
    all_gather_attention_bytes,
    ring_attention_bytes,
    tokens_to_hide,
    ulysses_bytes,
)
from helpers.specs import GPU, Link, ModelSpec, Plan
from helpers.specs.checks import check_count, check_counts, check_one_of, check_positive


# -- which method --------------------------------------------------------------------------------------------------
def ulysses_break_even(model: ModelSpec) -> float:
    """The number of ranks N at which Ulysses sends as many bytes in forward as a ring or an all-gather: 1 + q / kv.

    A ring sends 2 kv s (N-1)/N and Ulysses (2 q + 2 kv) (s/N) (N-1)/N. With more ranks Ulysses sends less: from N > 2
    without grouped queries, and from N > 9 with 8 query heads per key and value head (Llama 3 70B). Copies of key and
    value heads are not counted, which Ulysses needs where N is above their number.
    """
    return 1 + model.num_heads / model.kv_heads


def ulysses_refusal(model: ModelSpec, cp: int) -> str:
    """Why Ulysses cannot run on `cp` ranks, as a sentence that names the heads; empty where it can."""
    check_count("ulysses_refusal", "cp", cp)
    try:
        ulysses_bytes(model, cp=cp)
    except ValueError as error:
        return str(error)
    return ""


def attention_efficiency(cp: int, *, zigzag: bool = False) -> float:
    """The share of the time in which a rank is busy with causal attention, on average: N/(2N-1), or 1.0 with zigzag.

    It is also the bound of what the ring without a zigzag reaches of one GPU's speed: 53.3 % on 8 ranks.
    """
    return 1 / attention_imbalance(cp, zigzag=zigzag)


# -- which length hides the messages -------------------------------------------------------------------------------
def ring_attention_block(*, flops: float, bandwidth: float) -> float:
    """Tokens c = F / B of the smallest block whose attention takes as long as the next block's way to the rank.

    4 h c^2 / F = 4 h c / B with 16 bits, without grouped queries and without a causal mask (Liu et al. 2023, section
    3). `tokens_to_hide` is the same with grouped queries. A causal mask halves the operations, which doubles the block.
    """
    check_positive("ring_attention_block", "flops", flops)
    check_positive("ring_attention_block", "bandwidth", bandwidth)
    return flops / bandwidth


def ring_attention_sequence(*, flops: float, bandwidth: float) -> float:
    """Tokens s = 6 c that each rank needs, because six blocks are in its memory (Liu et al. 2023, table 2).

    Trap: the table prints c = 24.5e3 and s = 149.5e3 for an A100 with InfiniBand, but 312e12 / 12.5e9 is 24.96e3, which
    gives s = 149.8e3. All other rows fit.
    """
    return 6 * ring_attention_block(flops=flops, bandwidth=bandwidth)


def pass_q_miss_rate(model: ModelSpec) -> float:
    """The share T / (T + P) of new tokens up to which queries are fewer bytes than keys and values: 2 kv / q.

    T new tokens follow P tokens whose keys and values are cached (Yang et al. 2024, equation 1).
    """
    return 2 * model.kv_heads / model.num_heads


def pass_kv_tokens(model: ModelSpec, *, ranks: int, flops: float, bandwidth: float, dtype_bytes: float = 2) -> float:
    """New tokens T from which on a ring that passes keys and values hides behind attention, whatever is cached.

    N F kv e / (2 q B), with e bytes per element (Yang et al. 2024, equation 2): N times `tokens_to_hide`.
    """
    check_count("pass_kv_tokens", "ranks", ranks)
    return ranks * tokens_to_hide(model, flops=flops, bandwidth=bandwidth, dtype_bytes=dtype_bytes)


def pass_q_tokens(*, ranks: int, flops: float, bandwidth: float, dtype_bytes: float = 2) -> float:
    """Tokens T + P from which on a ring that passes queries hides: N e F / (4 B) (Yang et al. 2024, equation 3)."""
    check_count("pass_q_tokens", "ranks", ranks)
    return ranks * dtype_bytes * ring_attention_block(flops=flops, bandwidth=bandwidth) / 4


def faster_pass(
    model: ModelSpec, *, new_tokens: int, cached_tokens: int, ranks: int, flops: float, bandwidth: float,
    dtype_bytes: float = 2, with_all_to_all: bool = False,
) -> str:  # fmt: skip
    """What a ring should pass on when new tokens meet a cache: "pass-KV" or "pass-Q" (Yang et al. 2024, algorithm 1).

    pass-KV where its messages hide (`pass_kv_tokens`), or where the share of new tokens is at least `pass_q_miss_rate`.
    with_all_to_all: pass-Q also sends the outputs back, which nothing hides, so that share falls by 4 T B / (N F e)
    (appendix C, equation 5, algorithm 5).
    Trap: text copies of algorithm 1 read "T + P >= 2 kv / q", which is true for every prompt, so it would always say
    pass-KV. They have lost the numerator of T / (T + P), which equation 1 has. The paper tunes the threshold: with peak
    rates it is 4,000 tokens, but in table 4 pass-Q is ahead up to 6,400 of 128,000 tokens, there by 0.3 %.
    """
    check_counts("faster_pass", new_tokens=new_tokens, ranks=ranks)
    hides = new_tokens >= pass_kv_tokens(model, ranks=ranks, flops=flops, bandwidth=bandwidth, dtype_bytes=dtype_bytes)
    miss_rate = pass_q_miss_rate(model)
    if with_all_to_all:
        miss_rate -= 4 * new_tokens * bandwidth / (ranks * flops * dtype_bytes)
    return "pass-KV" if hides or new_tokens / (new_tokens + cached_tokens) >= miss_rate else "pass-Q"


def exposed_seconds(
    method: str, *, cp: int, sent: float, attention: float, hidden: float = 1.0, backward: bool = False
) -> float:
    """Seconds of a layer's messages that no attention hides, in forward or in backward.

    method: as in `Plan.cp_method`. sent: seconds of forward's messages. attention: seconds of the rank's attention in
    this pass. hidden: the share of a message that can travel while the rank computes; 0 if nothing overlaps.
        ring          each of N - 1 hops travels while the rank computes one of N blocks: max(0, hop - block)
        all_gather    travels at most while the rank computes its own block; backward's sum of gradients never hides
        all_to_all    attention needs what it brings, so all of it is exposed
    Backward sends keys and values once more, and their gradients, but Ulysses sends as much as in forward.
    """
    check_one_of("exposed_seconds", "method", method, Plan.KNOWN["cp_method"])
    if method == "all_to_all":
        return sent
    is_ring = method == "ring"
    hiding = (cp - 1 if is_ring else 1) / cp * attention  # seconds of attention behind which messages can travel
    total, overlapped = (2 * sent, (2 if is_ring else 1) * sent) if backward else (sent, sent)
    return total - min(hidden * overlapped, hiding)


class AttentionCost(NamedTuple):
    """A layer's attention on the busiest rank, forward and backward together.

    sent: bytes. imbalance: its attention over the mean of the ranks. held: bytes in forward of its queries, keys,
    values and output, and of `buffers`, which the exchange needs. compute, exposed: seconds of attention, and of
    messages that it does not hide.
    """

    sent: float
    imbalance: float
    held: int
    buffers: int
    compute: float
    exposed: float

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed


def attention_cost(
    model: ModelSpec, *, cp: int, method: str, gpu: GPU, link: Link, zigzag: bool = True, hidden: float = 1.0,
    block_speed: float = 1.0,
) -> AttentionCost:  # fmt: skip
    """One layer's causal attention over `model.seq` tokens on `cp` ranks, each with `link` to the next, in 16 bits.

    zigzag: as in `attention_imbalance`; Ulysses is balanced without one, because each rank has all tokens of its heads.
    hidden: as in `exposed_seconds`. block_speed: speed of attention in a ring's blocks over its speed in one call, as
    `Stack.context_flash`. An all-gather takes N - 1 hops like a ring, and each all-to-all one latency.
    Raises ValueError for an unknown method, or ranks that cannot share the tokens or, with Ulysses, the heads.
    """
    plan = Plan(cp=cp, cp_method=method)
    plan.check(model)
    sent = [_BYTES[method](model, cp=cp, backward=backward) for backward in (False, True)]
    imbalance = 1.0 if method == "all_to_all" else attention_imbalance(cp, zigzag=zigzag)
    slower = imbalance / (block_speed if method == "ring" and cp > 1 else 1.0)
    passes = [slower * each for each in flash_seconds(model.seq // cp, model.seq, model.hidden, gpu)]
    latencies = 0 if cp == 1 else 4 if method == "all_to_all" else cp - 1
    messages = latencies * link.latency + sent[0] / link.bandwidth
    exposed = sum(
        exposed_seconds(method, cp=cp, sent=messages, attention=each, hidden=hidden, backward=bool(backward))
        for backward, each in enumerate(passes)
    )
    own = 4 * (model.hidden + model.kv_heads * model.head_dim) * (model.seq // cp)  # four tensors of 2 bytes
    buffers = context_buffers(model, plan)
    return AttentionCost(sum(sent), imbalance, own + buffers, buffers, sum(passes), exposed)


_BYTES: dict[str, Callable[..., float]] = {
    "ring": ring_attention_bytes, "all_gather": all_gather_attention_bytes, "all_to_all": ulysses_bytes,
}  # fmt: skip


# -- what a long sequence costs ------------------------------------------------------------------------------------
def prefill_flops(model: ModelSpec, *, tokens: int, batch: int = 1) -> dict[str, int]:
    """Operations of one forward pass over a prompt: "products" 2 W T and causal "attention" 2 T^2 h l.

    W parameters, T tokens, l layers (Yang et al. 2024, appendix A). Attention has two products of 2 operations each,
    and the mask halves them, so the factor is 1/2 * 4. Trap: for Llama 3 405B and T = 1e6 the paper prints 1/2 T^2 h l,
    which is 1.03e18, beside the value 4.1e18, which needs the factor 4. Products and attention together are 501 TFLOP/s
    on each of 128 GPUs in 77 s; the paper prints 502.
    """
    check_counts("prefill_flops", tokens=tokens, batch=batch)
    return {
        "products": 2 * model.active_params * tokens * batch,
        "attention": 2 * batch * tokens**2 * model.hidden * model.num_layers,
    }


def attention_matrix_bytes(seq: int, *, num_heads: int = 1, batch: int = 1, dtype_bytes: int = 2) -> int:
    """Bytes of the scores of one layer if they are materialized: s^2 for each head, 32 GiB for one of 128k tokens."""
    check_counts("attention_matrix_bytes", seq=seq, num_heads=num_heads, batch=batch)
    return batch * num_heads * seq**2 * dtype_bytes


def blockwise_activation_bytes(
    kind: str, *, seq: int, hidden: int, num_heads: int, block: int, batch: int = 1
) -> tuple[int, int]:
    """Largest activations of one layer in bf16 (attention, feed-forward), as Liu et al. 2023 print them in table 1.

        vanilla       2 b n s^2           8 b s h     n heads
        flash         2 b s h + 4 b c h   8 b s h     memory-efficient attention
        blockwise     2 b s h             2 b s h     the feed-forward in blocks of c tokens, too
        ring          6 b c h             2 b c h     c is a rank's block, whatever s is
    The larger one is the table's total. Two traps: the total of "vanilla" is printed as 2 b h s^2, with the width in
    the place of the number of heads; and the text counts six blocks for the ring, of which each has 2 b c h bytes like
    the tensors above it, so that 12 b c h bytes would be meant. Raises ValueError for an unknown kind.
    """
    check_counts("blockwise_activation_bytes", seq=seq, hidden=hidden, num_heads=num_heads, block=block, batch=batch)
    check_one_of("blockwise_activation_bytes", "kind", kind, ("vanilla", "flash", "blockwise", "ring"))
    full, of_block = 2 * batch * seq * hidden, 2 * batch * block * hidden  # bytes of one tensor
    return {
        "vanilla": (attention_matrix_bytes(seq, num_heads=num_heads, batch=batch), 4 * full),
        "flash": (full + 2 * of_block, 4 * full),
        "blockwise": (full, full),
        "ring": (3 * of_block, of_block),
    }[kind]
