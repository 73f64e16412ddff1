"""The operations of `helpers/parallel/tensor_parallel`, as torch runs them on a CPU: what gpt_ops.py takes under tp.

B sequences of T tokens, t ranks, h hidden, V vocabulary. Dropout as with `seed=None`: every rank draws the whole mask
and keeps its part. Ranks whose part of the vocabulary is padded make one copy of their logits more, for a moment.
Watched on torch 2.13, as gpt_ops.py was; tests/predict/memory/test_tensor_inventory.py watches again. What surprises:
- a tensor cut along the tokens is laid out anew for the wire, if B > 1: a whole copy, for a moment;
- with sequence parallelism a norm keeps its two vectors stacked, 2 h numbers.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from helpers.predict.memory.attention_ops import Shape
from helpers.predict.memory.replay import BYTES, Made, Op


def columns(shape: Shape, module: str, source: str, results: dict[str, int], drops: tuple[str, ...] = ()) -> list[Op]:
    """Layers cut by columns that read one input, in one step of autograd. results: name -> columns on a rank.

    It keeps its input as it came. With sequence parallelism the whole input is there while forward multiplies and, once
    more, while backward does.
    """
    made = tuple(Made(name, (*shape.whole[:2], width), shape.dtype) for name, width in results.items())
    op = Op(module=module, makes=made, reads=(source,), keeps=(source,), drops=drops, results=len(made))
    if not shape.sequence_parallel:
        return [op]
    whole = Made(f"gathered {source}", shape.whole, shape.dtype)
    relaid = _relaid_bytes(shape)
    return [
        Op(module=module, makes=(whole,), moment=relaid),
        replace(op, drops=(whole.name, *drops), backward_moment=2 * whole.num_bytes + relaid),
    ]


def rows(shape: Shape, module: str, source: str, result: str, drops: tuple[str, ...]) -> list[Op]:
    """A layer cut by rows: partial sums, their sum over the ranks (of sequence shards: this rank's part), the bias."""
    partial = Made(f"partial {result}", shape.whole, shape.dtype)
    total, out = (Made(name, shape.stream, shape.dtype) for name in (f"sum of {result}", result))
    return [
        Op(module=module, makes=(partial,), reads=(source,), keeps=(source,)),
        _summed(shape, module, partial, total),
        Op(module=module, makes=(out,), reads=(total.name,), drops=(partial.name, total.name, *drops), passes=True),
    ]


def _summed(shape: Shape, module: str, partial: Made, total: Made, drops: tuple[str, ...] = ()) -> Op:
    """The all-reduce, or the reduce-scatter of which backward gathers the parts again."""
    op = Op(module=module, makes=(total,), reads=(partial.name,), drops=drops)
    if not shape.sequence_parallel:
        return replace(op, passes=True)
    relaid = _relaid_bytes(shape)
    return replace(op, moment=relaid, backward_moment=relaid)


def _relaid_bytes(shape: Shape) -> int:
    """Parts along the tokens lie apart in memory if there are several sequences."""
    return prod(shape.whole) * BYTES[shape.dtype] if shape.batch > 1 else 0


def norm_vectors(shape: Shape, result: str) -> tuple[Made, ...]:
    """What a norm of sequence shards keeps besides: weight and bias on their way to be added up."""
    return (Made(f"vectors of {result}", (2, shape.hidden), shape.dtype),) if shape.sequence_parallel else ()


def embeddings(shape: Shape, waits: int) -> tuple[list[Op], tuple[str, str]]:
    """Token and position vectors, and their names. waits: bytes of the gradient that a tied table waits for."""
    return [*_token_embedding(shape, waits), *_position_embedding(shape)], ("token vectors", "position vectors")


def _token_embedding(shape: Shape, waits: int) -> list[Op]:
    """Rows of ids that are here, zeros for the others, and the sum over the ranks."""
    module, ids = "token_embedding", shape.whole[:2]
    own, here = Made("ids counted from here", ids, "int64"), Made("ids here", ids, "int64")
    elsewhere = Made("ids elsewhere", ids, "bool")
    found, masked = (Made(name, shape.whole, shape.dtype) for name in ("rows", "rows or zeros"))
    total = Made("token vectors", shape.stream, shape.dtype)
    return [
        Op(module=module, makes=(own,)),
        Op(module=module, makes=(elsewhere,), moment=2 * elsewhere.num_bytes),
        Op(module=module, makes=(found, here), keeps=(here.name,), backward_moment=waits),
        Op(module=module, makes=(masked,), reads=(found.name,), keeps=(elsewhere.name,), drops=(found.name,)),
        _summed(shape, module, masked, total, drops=(masked.name, own.name, elsewhere.name)),
    ]


def _position_embedding(shape: Shape) -> list[Op]:
    """Every rank looks up all positions; of sequence shards it keeps its part."""
    module, name = "position_embedding", "position vectors"
    whole = Made(f"whole {name}" if shape.sequence_parallel else name, shape.whole[1:], shape.dtype)
    ops = [Op(module=module, makes=(whole,), keeps=("positions",))]
    if shape.sequence_parallel:
        part = Made(name, shape.stream[1:], shape.dtype)
        ops.append(Op(module=module, makes=(part,), reads=(whole.name,), drops=(whole.name,)))
    return ops


def loss(shape: Shape, module: str) -> list[Op]:
    """`vocab_parallel_cross_entropy`: keeps the exponentials of the rank's own logits, in fp32 at least."""
    tokens, width = shape.batch * shape.tokens, ceil(shape.vocab / shape.tp)
    exponentials = Made("exponentials", (tokens, width), "float32")
    sums, own = Made("sums and targets' logits", (2, tokens), "float32"), Made("targets here", (tokens, 1), "int64")
    flags = [Made(name, (tokens,), "bool") for name in ("whether here", "whether counted")]
    total, count = Made("sum of losses", (), "float32"), Made("number of targets", (), "int64")
    kept = (exponentials, sums, own, *flags)
    is_16_bit = shape.dtype != "float32"
    wide = exponentials.num_bytes if is_16_bit else 0
    small = (4 + 4 + 8 + 1) * tokens - 4  # largest, target's logit, ids before they are masked, a flag; no sum as yet
    return [
        Op(
            module=module, makes=(total, *kept), reads=("logits",), keeps=tuple(made.name for made in kept),
            moment=wide + small, backward_moment=wide + 8 * tokens,
        ),
        Op(
            module=module, makes=(Made("loss", (), "float32"), count), reads=(total.name,), keeps=(count.name,),
            drops=("logits", total.name),
        ),
    ]  # fmt: skip
