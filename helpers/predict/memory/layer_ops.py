"""Writes attention and tensor-parallel layers as the operations that torch runs on a CPU, for the inventory of memory.

inventory.py puts these operations together to a GPT's training step, and replay.py replays them on sizes alone. An `Op`
(replay.py) says which tensors one operation creates, which ones autograd saves, and which variables of the Python code
end with it (`released`). `temporary` and `backward_temporary` are further bytes while it runs. With `passes_gradient`,
backward hands the arriving gradient on and makes no new tensor; an Op with `gradient_of` does nothing in forward, and
in backward copies the gradient of that tensor. A `SizedTensor` is a name, a shape and a dtype. Tensors are known by
name: a function here gets the names of the tensors that exist already, and names the tensors that it creates.

B sequences of T tokens, H heads of d columns, t ranks, h hidden, V vocabulary. A map is an attention map: the scores,
or what is made of them, of shape (B, H, T, T). Query, key and value come as views (B, H, T, d) of (B, T, h), and
torch's batched product (bmm) copies such a view first. Attention exists in three forms: torch's flash kernel, torch's
fallback for dropout on a CPU, and written out in Python ("materialized").

The tensor-parallel layers are those of `helpers/parallel/tensor_parallel`. Under them every rank draws the full dropout
mask and keeps its part. A rank whose vocabulary shard is padded makes one more copy of its logits, for a moment.
All this was observed on torch 2.13, and tests/predict/memory/test_tensor_inventory.py observes it again. Two things
surprise:
- a tensor split along the tokens is copied into a contiguous buffer before it is sent, if B > 1: a full copy, for a
  moment;
- with sequence parallelism a norm keeps its two vectors stacked, 2 h elements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from helpers.predict.memory.replay import BYTES, Op, SizedTensor


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """The sizes and options that decide which operations run. All sizes are those of the full model, before any split.

    dtype: of weights and activations. dropout: whether there is any. attention: "flash" or "materialized". recompute:
    "none", "selective" or "full". tied: whether embedding and head share one table. tp: the tensor-parallel size.
    """

    batch: int
    tokens: int
    num_layers: int
    num_heads: int
    hidden: int
    vocab: int
    dtype: str = "float32"
    dropout: bool = False
    attention: str = "flash"
    recompute: str = "none"
    tied: bool = True
    tp: int = 1
    sequence_parallel: bool = False

    @property
    def stream(self) -> tuple[int, ...]:
        """The shape between the parts of a block: with sequence parallelism it has only the rank's tokens."""
        return (self.batch, self.tokens // (self.tp if self.sequence_parallel else 1), self.hidden)

    @property
    def full(self) -> tuple[int, ...]:
        """The shape of a tensor with all tokens."""
        return (self.batch, self.tokens, self.hidden)

    @property
    def local_heads(self) -> int:
        """Attention heads of one rank."""
        return self.num_heads // self.tp

    @property
    def heads(self) -> tuple[int, ...]:
        """The shape of query, key or value on one rank: (B, H, T, d)."""
        return (self.batch, self.local_heads, self.tokens, self.hidden // self.num_heads)

    @property
    def maps(self) -> tuple[int, ...]:
        """The shape of one rank's attention maps: (B, H, T, T)."""
        return (self.batch, self.local_heads, self.tokens, self.tokens)

    @property
    def builds_maps(self) -> bool:
        """Whether maps (B, H, T, T) exist; torch's own attention builds them on a CPU where there is dropout."""
        return self.attention == "materialized" or self.dropout

    @property
    def batched_copies(self) -> bool:
        """Whether bmm needs a copy of (B, H, T, d), because it is a view of (B, T, H, d)."""
        return self.batch > 1 and self.local_heads > 1


def attention_ops(shape: StepShape, module: str, heads: tuple[str, ...], mixed: str) -> list[Op]:
    """The operations from query, key and value to the result of attention.

    module: the path of the module, such as "blocks.0.attention". heads: the names of query, key and value, which are
    variables of the calling function. mixed: the name of the result, in which the values are mixed by the weights.
    """
    if not shape.builds_maps:
        return [_flash(shape, module, heads, mixed)]
    if shape.attention == "materialized" or shape.tp > 1:  # under tp the dropout mask comes from outside the kernel
        return _spelled_out(shape, module, heads, mixed)
    return _fallback(shape, module, heads, mixed)


def _flash(shape: StepShape, module: str, heads: tuple[str, ...], mixed: str) -> Op:
    """Flash attention saves its inputs, its output and the fp32 log-sum-exp per row; backward rebuilds the maps."""
    out = SizedTensor(mixed, shape.heads, shape.dtype)
    log_sums = SizedTensor(f"logsumexp of {mixed}", shape.heads[:3], "float32")
    return Op(module=module, creates=(out, log_sums), inputs=heads, saved=(*heads, out.name, log_sums.name))


def _spelled_out(shape: StepShape, module: str, heads: tuple[str, ...], mixed: str) -> list[Op]:
    """`materialized_attention` of the course's GPT, line by line; its masked scores live until the function returns."""
    query, key, value = (_batched(shape, name) for name in heads)
    raw, scaled, masked = _maps(shape, mixed, shape.dtype, "scores", "scaled scores", "masked scores")
    out, weights = SizedTensor(mixed, shape.heads, shape.dtype), _weights(shape, mixed)
    causal_mask = SizedTensor("", shape.maps[2:], shape.dtype)  # only its size counts
    return [
        *_copies(shape, module, heads[:2], shape.dtype),
        _product(module, raw, (query, key), released=_without(heads, (query, key))),
        Op(module=module, creates=(scaled,), inputs=(raw.name,), released=(raw.name,)),
        Op(module=module, creates=(masked,), inputs=(scaled.name,), released=(scaled.name,), passes_gradient=True,
           temporary=causal_mask.num_bytes),
        *_softmax(shape, module, mixed, masked.name, shape.dtype),
        *_copies(shape, module, heads[2:], shape.dtype),
        _product(module, out, (weights, value), released=(*_without(heads, (value,)), masked.name, weights)),
        *_gradient_copy(shape, module, mixed),
    ]  # fmt: skip


def _fallback(shape: StepShape, module: str, heads: tuple[str, ...], mixed: str) -> list[Op]:
    """torch's attention without a flash kernel: it scales query and key each, and converts 16-bit inputs to fp32."""
    wide = heads if shape.dtype == "float32" else tuple(f"fp32 {name}" for name in heads)  # the fp32 query, key, value
    casts = [_same_shape(shape, module, old, new) for old, new in zip(heads, wide, strict=True) if old != new]
    scaled = tuple(f"scaled {name}" for name in heads[:2])  # query and key; value is not scaled
    query, key, value = (_batched(shape, name) for name in (*scaled, wide[2]))
    mask = SizedTensor(f"causal mask of {mixed}", shape.maps[2:], "float32")
    raw, masked = _maps(shape, mixed, "float32", "scores", "masked scores")
    (returned,) = _maps(shape, mixed, shape.dtype, "returned weights")  # torch creates them although they are unused
    out = SizedTensor(mixed if wide == heads else f"fp32 {mixed}", shape.heads, "float32")
    ops = [
        *casts,
        _same_shape(shape, module, wide[0], scaled[0]),
        Op(module=module, creates=(mask,), temporary=shape.tokens**2),  # a mask of bools comes first, 1 byte each
        _same_shape(shape, module, wide[1], scaled[1]),
        *_copies(shape, module, scaled, "float32"),
        _product(module, raw, (query, key), released=(*_without(scaled, (query, key)), scaled[1])),
        Op(module=module, creates=(masked,), inputs=(raw.name,), released=(raw.name,), passes_gradient=True),
        *_softmax(shape, module, mixed, masked.name, "float32", released=(masked.name,)),
        *([] if wide == heads else [Op(module=module, creates=(returned,))]),
        *_copies(shape, module, wide[2:], "float32"),
        _product(module, out, (_weights(shape, mixed), value), released=_without(wide, (value,))),
        *_gradient_copy(shape, module, out.name),
    ]
    # torch's function holds the scaled query (scaled[0]) in a variable until it returns, but not the scaled key.
    fp32_only = () if wide == heads else (*wide, returned.name)  # of the conversion from 16 bits to fp32 and back
    released_at_end = (scaled[0], mask.name, _weights(shape, mixed), *fp32_only)
    if out.name == mixed:
        return [*ops, Op(module=module, released=released_at_end)]
    return [*ops, _same_shape(shape, module, out.name, mixed, shape.dtype, released=(out.name, *released_at_end))]


def _gradient_copy(shape: StepShape, module: str, mixed: str) -> list[Op]:
    """In backward, bmm needs a copy of the gradient (B, H, T, d), which comes as a view of (B, T, h)."""
    return [Op(module=module, gradient_of=mixed, inputs=(mixed,))] if shape.batched_copies else []


def _maps(shape: StepShape, mixed: str, dtype: str, *names: str) -> list[SizedTensor]:
    """One attention map of each of these names, on the way to the result `mixed`."""
    return [SizedTensor(f"{name} of {mixed}", shape.maps, dtype) for name in names]


def _weights(shape: StepShape, mixed: str) -> str:
    """The name of the attention weights that are multiplied with the values."""
    return f"dropped softmax of {mixed}" if shape.dropout else f"softmax of {mixed}"


def _batched(shape: StepShape, name: str) -> str:
    """The name of the tensor that bmm reads: a copy where (B, H) cannot be one dimension of the view."""
    return f"copy of {name}" if shape.batched_copies else name


def _without(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `others` that are not in `names`.

    With the caller's tensors as `names`, these are the copies that attention made itself and may release.
    """
    return tuple(name for name in others if name not in names)


def _same_shape(
    shape: StepShape, module: str, source: str, result: str, dtype: str = "float32", released: tuple[str, ...] = (),
    passes_gradient: bool = False,
) -> Op:  # fmt: skip
    """An operation that makes one tensor (B, H, T, d) of another one: a cast, a copy or a scaling."""
    made = SizedTensor(result, shape.heads, dtype)
    return Op(module=module, creates=(made,), inputs=(source,), released=released, passes_gradient=passes_gradient)


def _copies(shape: StepShape, module: str, names: tuple[str, ...], dtype: str) -> list[Op]:
    """The copies that bmm needs of these tensors; none where it can read the views."""
    pairs = [(name, _batched(shape, name)) for name in names]
    return [_same_shape(shape, module, old, new, dtype, passes_gradient=True) for old, new in pairs if old != new]


def _product(module: str, out: SizedTensor, factors: tuple[str, str], released: tuple[str, ...]) -> Op:
    """A batched product, which saves both factors for backward."""
    return Op(module=module, creates=(out,), inputs=factors, saved=factors, released=released)


def _softmax(
    shape: StepShape, module: str, mixed: str, scores: str, dtype: str, released: tuple[str, ...] = ()
) -> list[Op]:
    """Softmax of the map `scores`, and dropout. Softmax saves its output; dropout saves its mask and makes one map."""
    softmax, dropped, mask = _maps(shape, mixed, dtype, "softmax", "dropped softmax", "dropout mask of softmax")
    ops = [Op(module=module, creates=(softmax,), inputs=(scores,), saved=(softmax.name,), released=released)]
    if shape.dropout and shape.tp > 1:
        full = (shape.batch, shape.num_heads, *shape.maps[2:])
        return ops + part_dropout(shape, module, softmax.name, dropped.name, full, shape.maps)
    if shape.dropout:
        out = {"creates": (dropped, mask), "saved": (mask.name,)}
        ops.append(Op(module=module, inputs=(softmax.name,), released=(softmax.name,), **out))
    return ops


def part_dropout(
    shape: StepShape, module: str, source: str, result: str, full: tuple[int, ...], part: tuple[int, ...]
) -> list[Op]:
    """Dropout of one rank's part of a tensor: the rank draws the full mask and keeps its part of it.

    full, part: the shapes of the full tensor and of the rank's part.
    """
    mask = SizedTensor(f"dropout mask of {result}", part, shape.dtype)
    drawn, out = SizedTensor(f"whole {mask.name}", full, shape.dtype), SizedTensor(result, part, shape.dtype)
    return [
        # The mask is dropout of a tensor of ones, which needs two temporaries: the ones, and the random numbers.
        Op(module=module, creates=(drawn,), temporary=2 * drawn.num_bytes),
        Op(module=module, creates=(mask,), released=(drawn.name,)),
        Op(module=module, creates=(out,), inputs=(source,), saved=(mask.name,), released=(mask.name, source)),
    ]


def columns(
    shape: StepShape, module: str, source: str, results: dict[str, int], released: tuple[str, ...] = ()
) -> list[Op]:
    """Column-parallel layers that read one input, as one autograd function. results: name -> columns on a rank.

    The function saves its input as it came. With sequence parallelism that is a shard, so the full input exists only
    while forward multiplies with it, and again while backward does.
    """
    made = tuple(SizedTensor(name, (*shape.full[:2], width), shape.dtype) for name, width in results.items())
    # num_results: how many of the created tensors are results, to which variables refer and whose gradients arrive.
    op = Op(module=module, creates=made, inputs=(source,), saved=(source,), released=released, num_results=len(made))
    if not shape.sequence_parallel:
        return [op]
    full = SizedTensor(f"gathered {source}", shape.full, shape.dtype)
    copied = _contiguous_bytes(shape)
    in_backward = 2 * full.num_bytes + copied  # the full input again, and the gradient of the full input
    return [
        Op(module=module, creates=(full,), temporary=copied),
        replace(op, released=(full.name, *released), backward_temporary=in_backward),
    ]


def rows(shape: StepShape, module: str, source: str, result: str, released: tuple[str, ...]) -> list[Op]:
    """A row-parallel layer: partial sums, their sum over the ranks (with sequence parallelism a shard), the bias."""
    partial = SizedTensor(f"partial {result}", shape.full, shape.dtype)
    total, out = (SizedTensor(name, shape.stream, shape.dtype) for name in (f"sum of {result}", result))
    return [
        Op(module=module, creates=(partial,), inputs=(source,), saved=(source,)),
        _summed(shape, module, partial, total),
        Op(module=module, creates=(out,), inputs=(total.name,), released=(partial.name, total.name, *released),
           passes_gradient=True),
    ]  # fmt: skip


def _summed(
    shape: StepShape, module: str, partial: SizedTensor, total: SizedTensor, released: tuple[str, ...] = ()
) -> Op:
    """The all-reduce; with sequence parallelism a reduce-scatter, for which backward gathers the shards again."""
    op = Op(module=module, creates=(total,), inputs=(partial.name,), released=released)
    if not shape.sequence_parallel:
        return replace(op, passes_gradient=True)
    copied = _contiguous_bytes(shape)
    return replace(op, temporary=copied, backward_temporary=copied)


def _contiguous_bytes(shape: StepShape) -> int:
    """Bytes of the contiguous copy of token shards; with one sequence they are contiguous already."""
    return prod(shape.full) * BYTES[shape.dtype] if shape.batch > 1 else 0


def norm_vectors(shape: StepShape, result: str) -> tuple[SizedTensor, ...]:
    """What a norm on sequence shards saves in addition: its weight and bias, stacked for the sum over the ranks."""
    return (SizedTensor(f"vectors of {result}", (2, shape.hidden), shape.dtype),) if shape.sequence_parallel else ()


def embeddings(shape: StepShape, tied_bytes: int) -> tuple[list[Op], tuple[str, str]]:
    """Operations of the token and position embeddings, and the names of their results.

    tied_bytes: bytes of the head's gradient of a tied table, which exists until the embedding's gradient is added.
    """
    return [*_token_embedding(shape, tied_bytes), *_position_embedding(shape)], ("token vectors", "position vectors")


def _token_embedding(shape: StepShape, tied_bytes: int) -> list[Op]:
    """The rows of ids in the rank's vocabulary shard, zeros for other ids, and the sum over the ranks."""
    module, ids = "token_embedding", shape.full[:2]
    # The ids minus the first id of the shard; the same with 0 for ids of other shards; and which ids these are.
    shifted, local = SizedTensor("ids counted from here", ids, "int64"), SizedTensor("ids here", ids, "int64")
    remote = SizedTensor("ids elsewhere", ids, "bool")
    rows_of_table, masked = (SizedTensor(name, shape.full, shape.dtype) for name in ("rows", "rows or zeros"))
    total = SizedTensor("token vectors", shape.stream, shape.dtype)
    return [
        Op(module=module, creates=(shifted,)),
        # Below the first id of the shard or above its last one: two comparisons, each with bools of its own.
        Op(module=module, creates=(remote,), temporary=2 * remote.num_bytes),
        Op(module=module, creates=(rows_of_table, local), saved=(local.name,), backward_temporary=tied_bytes),
        Op(module=module, creates=(masked,), inputs=(rows_of_table.name,), saved=(remote.name,),
           released=(rows_of_table.name,)),
        _summed(shape, module, masked, total, released=(masked.name, shifted.name, remote.name)),
    ]  # fmt: skip


def _position_embedding(shape: StepShape) -> list[Op]:
    """Every rank looks up all positions; with sequence parallelism it keeps those of its tokens."""
    module, name = "position_embedding", "position vectors"
    full = SizedTensor(f"whole {name}" if shape.sequence_parallel else name, shape.full[1:], shape.dtype)
    ops = [Op(module=module, creates=(full,), saved=("positions",))]
    if shape.sequence_parallel:
        part = SizedTensor(name, shape.stream[1:], shape.dtype)
        ops.append(Op(module=module, creates=(part,), inputs=(full.name,), released=(full.name,)))
    return ops


def loss(shape: StepShape, module: str) -> list[Op]:
    """`vocab_parallel_cross_entropy`, which saves the exponentials of the rank's logits, in fp32 at least."""
    tokens, width = shape.batch * shape.tokens, ceil(shape.vocab / shape.tp)
    exponentials = SizedTensor("exponentials", (tokens, width), "float32")
    sums = SizedTensor("sums and targets' logits", (2, tokens), "float32")
    targets_here = SizedTensor("targets here", (tokens, 1), "int64")
    flags = [SizedTensor(name, (tokens,), "bool") for name in ("whether here", "whether counted")]
    total, count = SizedTensor("sum of losses", (), "float32"), SizedTensor("number of targets", (), "int64")
    saved_tensors = (exponentials, sums, targets_here, *flags)
    wide = 0 if shape.dtype == "float32" else exponentials.num_bytes  # 16-bit logits are copied to fp32
    # Per token: its largest logit, the target's logit, the unmasked id and a flag. The sum of the losses, a scalar of
    # 4 bytes in `creates`, comes only later, so it is subtracted.
    small = (4 + 4 + 8 + 1) * tokens - 4
    return [
        Op(
            module=module, creates=(total, *saved_tensors), inputs=("logits",),
            saved=tuple(made.name for made in saved_tensors),
            temporary=wide + small, backward_temporary=wide + 8 * tokens,  # two fp32 factors per token
        ),
        Op(
            module=module, creates=(SizedTensor("loss", (), "float32"), count), inputs=(total.name,),
            saved=(count.name,),
            released=("logits", total.name),
        ),
    ]  # fmt: skip
