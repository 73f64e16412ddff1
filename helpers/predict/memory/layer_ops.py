"""Writes flash attention and tensor-parallel layers as operations of torch on a CPU, for the inventory of memory.

inventory.py puts these operations together to a GPT's training step, and replay.py replays them on sizes alone. An `Op`
(replay.py) says which tensors one operation creates, which ones autograd saves, and which variables of the Python code
end with it (`released`). `temporary` and `backward_temporary` are further bytes while it runs. With `passes_gradient`,
backward hands the arriving gradient on and makes no new tensor. A `SizedTensor` is a name, a shape and a dtype. Tensors
are known by name: a function here gets the names of the tensors that exist already, and names those that it creates.

B sequences of T tokens, H heads of d columns, t ranks, h hidden, V vocabulary.

The tensor-parallel layers are those of `helpers/parallel/tensor_parallel`. A rank whose vocabulary shard is padded
makes one more copy of its logits, for a moment. All this was observed on torch 2.13, and
tests/predict/memory/test_tensor_inventory.py observes it again. Two things surprise:
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

    dtype: of weights and activations. tied: whether embedding and head share one table. tp: the tensor-parallel size.
    """

    batch: int
    tokens: int
    num_layers: int
    num_heads: int
    hidden: int
    vocab: int
    dtype: str = "float32"
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
    def heads(self) -> tuple[int, ...]:
        """The shape of query, key or value on one rank: (B, H, T, d)."""
        return (self.batch, self.num_heads // self.tp, self.tokens, self.hidden // self.num_heads)


def flash_attention(shape: StepShape, module: str, heads: tuple[str, ...], mixed: str) -> Op:
    """Flash attention saves its inputs, its output and the fp32 log-sum-exp per row; backward rebuilds the scores.

    module: the path of the module, such as "blocks.0.attention". heads: the names of query, key and value. mixed: the
    name of the result, in which the values are mixed by the attention weights.
    """
    out = SizedTensor(mixed, shape.heads, shape.dtype)
    log_sums = SizedTensor(f"logsumexp of {mixed}", shape.heads[:3], "float32")
    return Op(module=module, creates=(out, log_sums), inputs=heads, saved=(*heads, out.name, log_sums.name))


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
