"""Predicts the messages and bytes with which context parallelism exchanges keys and values, per layer.

b sequences of s tokens, N ranks (cp); rank r has s_r of the tokens, which is s/N where N divides s. q and kv: elements
of a token's queries and of its keys (q = h; kv is smaller with grouped queries). Rank r sends, times b and the bytes of
an element:

                  forward                                  backward
    ring          2 kv (s - s_(r+1))                       as forward, and 2 kv (s - s_r) of gradients
    all_gather    2 kv (N - 1) s_max                       twice forward: gathers again, reduce-scatters gradients
    all_to_all    (q + 2 kv) s_r (N-1)/N + q (s - s_r)/N   q s_r (N-1)/N + (q + 2 kv) (s - s_r)/N

    ring          a rank passes on the blocks of all ranks but the next one, and the gradients of all blocks but its own
    all_gather    the collectives need equal sizes, so shards are padded to the longest one, of s_max tokens
    all_to_all    Ulysses: queries, keys and values become head shards, and the output becomes sequence shards again.
                  Where there are fewer key and value heads than ranks, they are copied until each rank has one

With equal shards, and on average otherwise, these are the known formulas: 2 kv s (N-1)/N for the ring and the
all-gather, and twice that in backward; (2 q + 2 kv) (s/N) (N-1)/N for Ulysses in each direction. What of it is exposed
differs (predict/time/layer.py). Sources: Liu et al. 2023 (Ring Attention with Blockwise Transformers), section 3; The
Llama 3 Herd of Models (2024), section 3.3.2; Jacobs et al. 2023 (DeepSpeed Ulysses), whose 4 N h / P is 4 s h / N here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from helpers.predict.traffic.predicted_log import PredictedLog
from helpers.records import CommLog
from helpers.specs import ModelSpec, Plan
from helpers.specs.checks import check_count, check_one_of, refuse_unmodelled_fields


def token_chunks(seq: int, cp: int, *, zigzag: bool = False) -> list[list[range]]:
    """For each rank its chunks of a sequence, as ranges of indices: one, or with `zigzag` chunks r and 2N-1-r of 2N.

    Where the length does not divide, the first chunks are one token longer. Raises ValueError for more ranks than
    tokens.
    """
    if isinstance(cp, bool) or not isinstance(cp, int) or not 1 <= cp <= seq:
        raise ValueError(f"context parallel: cp={cp!r} ranks cannot share seq={seq} tokens; choose 1 to {seq}")
    num_chunks = 2 * cp if zigzag else cp
    sizes = [seq // num_chunks + (chunk < seq % num_chunks) for chunk in range(num_chunks)]
    chunks = [range(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes), strict=True)]
    return [[chunks[rank], chunks[-1 - rank]] if zigzag else [chunks[rank]] for rank in range(cp)]


def shard_lengths(model: ModelSpec, cp: int, *, zigzag: bool = False) -> list[int]:
    """Tokens of a sequence on each rank. Raises ValueError for more ranks than tokens, or a model with a window.

    Experts are allowed, because they change nothing about attention.
    """
    refuse_unmodelled_fields("context parallel", model, names=("window", "latent"))
    return [sum(map(len, chunks)) for chunks in token_chunks(model.seq, cp, zigzag=zigzag)]


def ring_attention_bytes(
    model: ModelSpec, *, cp: int, batch: int = 1, dtype_bytes: int = 2, backward: bool = False, zigzag: bool = False,
    rank: int | None = None,
) -> float:  # fmt: skip
    """Bytes that a rank sends in one layer with ring attention, in forward, or in backward with `backward=True`.

    rank: whose bytes; None: the mean over the ranks, which every rank sends where shards are equal.
    """
    lengths = shard_lengths(model, cp, zigzag=zigzag)
    per_token = 2 * _width(model, model.kv_heads) * batch * dtype_bytes
    if rank is None:
        return per_token * model.seq * (cp - 1) / cp * (2 if backward else 1)
    sent = model.seq - lengths[(rank + 1) % cp]
    return per_token * (sent + (model.seq - lengths[rank] if backward else 0))


def all_gather_attention_bytes(
    model: ModelSpec, *, cp: int, batch: int = 1, dtype_bytes: int = 2, backward: bool = False, zigzag: bool = False
) -> float:
    """Bytes that each rank sends in one layer if keys and values are all-gathered, in forward or in backward."""
    longest = max(shard_lengths(model, cp, zigzag=zigzag))
    return 2 * _width(model, model.kv_heads) * batch * (cp - 1) * longest * dtype_bytes * (2 if backward else 1)


def ulysses_bytes(
    model: ModelSpec, *, cp: int, batch: int = 1, dtype_bytes: int = 2, backward: bool = False, zigzag: bool = False,
    rank: int | None = None,
) -> float:  # fmt: skip
    """Bytes that a rank sends in one layer with Ulysses, in forward, or in backward, which sends as much on average.

    rank: whose bytes; None: the mean over the ranks, which every rank sends where shards are equal. Raises ValueError
    where the ranks cannot share the heads: cp has to divide the query heads, and cp and the key and value heads have to
    divide one another.
    """
    lengths = shard_lengths(model, cp, zigzag=zigzag)
    query, both = _width(model, model.num_heads), 2 * _width(model, _ulysses_kv_heads(model, cp))
    if rank is None:
        return (2 * query + both) * batch * model.seq * dtype_bytes * (cp - 1) / cp**2
    to_heads, to_sequence = (query, query + both) if backward else (query + both, query)
    elements = to_heads * lengths[rank] * (cp - 1) + to_sequence * (model.seq - lengths[rank])
    return elements * batch * dtype_bytes / cp


def context_parallel_traffic(
    model: ModelSpec, *, cp: int, method: str, rank: int = 0, batch: int = 1, dtype_bytes: int = 2, zigzag: bool = True
) -> CommLog:
    """Every operation of `rank` in the attention of one layer, forward and then backward, in the order of their calls.

    method: as in `Plan.cp_method`. zigzag: as in `ContextParallel`. Raises ValueError for an unknown method, and where
    the ranks cannot share tokens or, with Ulysses, heads.
    """
    check_count("context_parallel_traffic", "batch", batch)
    check_one_of("context_parallel_traffic", "method", method, Plan.KNOWN["cp_method"])
    lengths = shard_lengths(model, cp, zigzag=zigzag)
    traffic = PredictedLog(cp, dtype_bytes=dtype_bytes)
    _METHODS[method](model, traffic, batch, lengths, rank)
    return traffic.log


def _ring(model: ModelSpec, traffic: PredictedLog, batch: int, lengths: list[int], rank: int) -> None:
    """Keys and values make N - 1 hops in each pass; the gradients of a block make as many, one hop behind it."""
    cp = len(lengths)

    def hop(number: int, where: str) -> None:
        for op, owner in (("send", rank - number), ("recv", rank - number - 1)):
            traffic.add(op, _key_value_shape(model, batch, lengths[owner % cp]), where)

    for number in range(cp - 1):
        hop(number, "keys and values, forward")
    for number in range(cp):
        if number < cp - 1:
            hop(number, "keys and values, backward")
        if number:
            hop(number, "gradients of keys and values, backward")


def _all_gather(model: ModelSpec, traffic: PredictedLog, batch: int, lengths: list[int], rank: int) -> None:
    shard = _key_value_shape(model, batch, max(lengths))
    traffic.add("all_gather", shard, "keys and values, forward")
    traffic.add("all_gather", shard, "keys and values, backward")
    traffic.add("reduce_scatter", (shard[0] * len(lengths), *shard[1:]), "gradients of keys and values, backward")


def _all_to_all(model: ModelSpec, traffic: PredictedLog, batch: int, lengths: list[int], rank: int) -> None:
    """Each all-to-all is of one flat tensor: a rank's tokens of all heads, or all tokens of its heads."""
    cp, keys = len(lengths), _width(model, _ulysses_kv_heads(model, len(lengths)))
    queries = _width(model, model.num_heads)
    widths = {"queries": queries, "keys": keys, "values": keys, "output": queries}
    own_tokens = {name: width * batch * lengths[rank] for name, width in widths.items()}
    own_heads = {name: width // cp * batch * model.seq for name, width in widths.items()}
    for name in ("queries", "keys", "values"):
        traffic.add("all_to_all", (own_tokens[name],), f"{name}, forward")
    traffic.add("all_to_all", (own_heads["output"],), "output, forward")
    traffic.add("all_to_all", (own_tokens["output"],), "gradient of the output, backward")
    for name in ("values", "keys", "queries"):
        traffic.add("all_to_all", (own_heads[name],), f"gradients of {name}, backward")


_METHODS: dict[str, Callable[..., None]] = {"ring": _ring, "all_gather": _all_gather, "all_to_all": _all_to_all}


def tokens_to_hide(model: ModelSpec, *, flops: float, bandwidth: float, dtype_bytes: int = 2) -> float:
    """Tokens per rank from which on the ring's next block arrives while the rank computes with the present one.

    Attention of c tokens to c tokens takes 4 c^2 q operations, and a block has 2 c kv dtype_bytes bytes, which gives
    c = flops / bandwidth with 16 bits and kv = q (Liu et al. 2023, section 3), in forward without a causal mask. flops:
    operations per second; bandwidth: bytes per second.
    """
    refuse_unmodelled_fields("context parallel", model, names=("window", "latent"))
    return flops * dtype_bytes * model.kv_heads / (2 * bandwidth * model.num_heads)


def _key_value_shape(model: ModelSpec, batch: int, tokens: int) -> tuple[int, ...]:
    """Of keys and values in one message: both, sequences, heads, query heads in the group (not copied), tokens, d."""
    return (2, batch, model.kv_heads, 1, tokens, model.head_dim)


def _ulysses_kv_heads(model: ModelSpec, cp: int) -> int:
    """Key and value heads with copies: each rank gets the same number of them, at least one."""
    if model.num_heads % cp:
        raise ValueError(f"Ulysses: cp={cp} does not divide num_heads={model.num_heads}; choose a divisor, or the ring")
    if model.kv_heads % cp and cp % model.kv_heads:
        raise ValueError(
            f"Ulysses: cp={cp} and num_kv_heads={model.kv_heads} do not divide one another; choose a cp that divides "
            "num_kv_heads, a multiple of it, or the ring"
        )
    return max(model.kv_heads, cp)


def _width(model: ModelSpec, heads: int) -> int:
    """Elements of a token in so many heads."""
    return heads * model.head_dim
