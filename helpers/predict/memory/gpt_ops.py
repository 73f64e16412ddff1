"""The operations of a training step of the course's GPT (`helpers/workloads/gpt.py`), as torch runs them on a CPU.

B sequences of T tokens, H heads of d columns, h = H d, V vocabulary. Found by watching torch 2.13: saved tensors, and
every storage through a dispatch mode; tests/predict/memory/test_inventory.py watches again. What surprises:
- the scores' matrices reach bmm as copies of query, key and value, if B > 1 and H > 1: autograd keeps those;
- torch's own attention builds the maps on a CPU as soon as there is dropout, and in float32 also for 16-bit models;
- a dropout mask has the dtype of what it masks: 4 bytes a number in fp32, where the papers count 1.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from helpers.predict.memory import tensor_ops as cut
from helpers.predict.memory.attention_ops import Shape, attention_ops, part_dropout
from helpers.predict.memory.replay import Made, Op, Piece

LOSS = "the loss"


def gpt_step(shape: Shape) -> list[Op | Piece]:
    """Embeddings, blocks, final norm, head, loss. "token ids" and "targets" must exist before."""
    steps: list[Op | Piece] = [*_embeddings(shape)]
    for layer in range(shape.num_layers):
        ops, path = _block(shape, layer), f"blocks.{layer}"
        if shape.recompute == "full":
            steps.append(Piece(module=path, ops=tuple(ops), takes=(_input(layer),), gives=_input(layer + 1)))
        else:
            steps += ops
    return [*steps, *_head(shape)]


def given(shape: Shape) -> list[Made]:
    """What the caller hands in."""
    return [Made(name, shape.whole[:2], "int64") for name in ("token ids", "targets")]


def _input(layer: int) -> str:
    return f"input of block {layer}"


def _embeddings(shape: Shape) -> list[Op]:
    positions = Made("positions", shape.whole[1:2], "int64")
    total = "sum of vectors" if shape.dropout else _input(0)
    waits = _table_gradient(shape).num_bytes if shape.tied else 0  # the embedding's own, until it has been added
    ops, names = _both_tables(shape, waits) if shape.tp == 1 else cut.embeddings(shape, waits)
    added = Made(total, shape.stream, shape.dtype)
    ops = [
        Op(module="GPT", makes=(positions,)),
        *ops,
        Op(module="GPT", makes=(added,), reads=names, drops=names, passes=True),
    ]
    return [*ops, *(_dropout(shape, "dropout", total, _input(0)) if shape.dropout else ())]


def _both_tables(shape: Shape, waits: int) -> tuple[list[Op], tuple[str, str]]:
    token = Made("token vectors", shape.stream, shape.dtype)
    position = Made("position vectors", shape.stream[1:], shape.dtype)
    ops = [
        Op(module="token_embedding", makes=(token,), keeps=("token ids",), backward_moment=waits),
        Op(module="position_embedding", makes=(position,), keeps=("positions",)),
    ]
    return ops, (token.name, position.name)


def _dropout(shape: Shape, module: str, source: str, result: str) -> list[Op]:
    if shape.sequence_parallel:
        return part_dropout(shape, module, source, result, shape.whole, shape.stream)
    made, mask = (Made(name, shape.stream, shape.dtype) for name in (result, f"dropout mask of {result}"))
    return [Op(module=module, makes=(made, mask), reads=(source,), keeps=(mask.name,), drops=(source,))]


def _norm(shape: Shape, module: str, source: str, result: str, drops: tuple[str, ...] = ()) -> Op:
    """Keeps its input, and mean and 1 / deviation of each token."""
    sides = [Made(f"{side} of {result}", (*shape.stream[:2], 1), shape.dtype) for side in ("mean", "rstd")]
    sides += cut.norm_vectors(shape, result)
    makes, keeps = (Made(result, shape.stream, shape.dtype), *sides), (source, *(side.name for side in sides))
    return Op(module=module, makes=makes, reads=(source,), keeps=keeps, drops=drops)


def _linear(shape: Shape, module: str, source: str, result: str, columns: int, drops: tuple[str, ...] = ()) -> Op:
    made = Made(result, (*shape.stream[:2], columns), shape.dtype)
    return Op(module=module, makes=(made,), reads=(source,), keeps=(source,), drops=drops)


def _block(shape: Shape, layer: int) -> list[Op | Piece]:
    """What the block's variables hold: its input to the end, a part's input until that part returns."""
    path, x, middle, out = f"blocks.{layer}", _input(layer), f"middle of block {layer}", _input(layer + 1)
    return [
        *_attention(shape, path, layer),
        *_residual(shape, path, f"projection {layer}", x, middle, ()),
        *_feed_forward(shape, path, layer, middle),
        *_residual(shape, path, f"down {layer}", middle, out, (middle, x)),
    ]


def _residual(shape: Shape, path: str, branch: str, x: str, out: str, drops: tuple[str, ...]) -> list[Op]:
    ops, end = [], branch
    if shape.dropout:
        end = f"{branch} after dropout"
        ops = _dropout(shape, f"{path}.dropout", branch, end)
    made = Made(out, shape.stream, shape.dtype)
    return [*ops, Op(module=path, makes=(made,), reads=(x, end), drops=(end, *drops), passes=True)]


def _attention(shape: Shape, path: str, layer: int) -> list[Op | Piece]:
    normed, module = f"normed input {layer}", f"{path}.attention"
    heads = tuple(f"{name} {layer}" for name in ("query", "key", "value"))
    ops: list[Op | Piece] = [_norm(shape, f"{path}.attention_norm", _input(layer), normed)]
    if shape.tp > 1:
        ops += cut.columns(shape, f"{module}.query", normed, dict.fromkeys(heads, shape.hidden // shape.tp))
    for name in heads:
        if shape.tp == 1:
            ops.append(_linear(shape, f"{module}.{name.split()[0]}", normed, name, shape.hidden))
        if shape.builds_maps and shape.own_heads > 1:  # its gradient comes as (B, H, T, d) and is copied to (B, T, h)
            ops.append(Op(module=module, of=name, reads=(name,)))
    mixed = f"mixed {layer}"
    attend = attention_ops(shape, module, heads, mixed)
    if shape.recompute == "selective":
        ops.append(Piece(module=module, ops=tuple(attend), takes=heads, gives=mixed))
    else:
        ops += attend
    flat = f"flat {mixed}" if shape.builds_maps and shape.own_heads > 1 else mixed
    if flat != mixed:
        made = Made(flat, (*shape.whole[:2], shape.hidden // shape.tp), shape.dtype)
        ops.append(Op(module=module, makes=(made,), reads=(mixed,), drops=(mixed,), passes=True))
    end = (flat, normed, *heads)
    return [*ops, *_second(shape, f"{module}.projection", flat, f"projection {layer}", end)]


def _second(shape: Shape, module: str, source: str, result: str, drops: tuple[str, ...]) -> list[Op]:
    """The second layer of a pair, back to h columns; under tp cut by rows."""
    if shape.tp > 1:
        return cut.rows(shape, module, source, result, drops)
    return [_linear(shape, module, source, result, shape.hidden, drops)]


def _feed_forward(shape: Shape, path: str, layer: int, x: str) -> list[Op]:
    normed, wide, active = (f"{name} {layer}" for name in ("normed middle", "up", "gelu"))
    module, width = f"{path}.feed_forward", 4 * shape.hidden // shape.tp
    made = Made(active, (*shape.whole[:2], width), shape.dtype)
    return [
        _norm(shape, f"{path}.feed_forward_norm", x, normed),
        *_first(shape, f"{module}.up", normed, wide, width),
        Op(module=module, makes=(made,), reads=(wide,), keeps=(wide,), drops=(wide,)),
        *_second(shape, f"{module}.down", active, f"down {layer}", (active, normed)),
    ]


def _first(shape: Shape, module: str, source: str, result: str, width: int, drops: tuple[str, ...] = ()) -> list[Op]:
    """The first layer of a pair, or the head; under tp cut by columns, of which a rank has `width`."""
    if shape.tp > 1:
        return cut.columns(shape, module, source, {result: width}, drops)
    return [_linear(shape, module, source, result, width, drops)]


def _table_gradient(shape: Shape) -> Made:
    """The head's gradient of a tied table waits for the embedding's: only their sum becomes `.grad`."""
    return Made("gradient of the tied table", (ceil(shape.vocab / shape.tp), shape.hidden), shape.dtype)


def _head(shape: Shape) -> list[Op]:
    last, normed = _input(shape.num_layers), "normed output"
    *before, head = _first(shape, "head", normed, "logits", ceil(shape.vocab / shape.tp), (normed,))
    return [
        _norm(shape, "final_norm", last, normed, (last,)),
        *before,
        replace(head, leaves=_table_gradient(shape)) if shape.tied else head,
        *(_loss(shape) if shape.tp == 1 else cut.loss(shape, LOSS)),
    ]


def _loss(shape: Shape) -> list[Op]:
    log_softmax = Made("log-softmax", (shape.batch * shape.tokens, shape.vocab), shape.dtype)
    loss, weight = (Made(name, (), shape.dtype) for name in ("loss", "weight of all targets"))
    keeps = (log_softmax.name, "targets", weight.name)
    return [
        Op(module=LOSS, makes=(log_softmax,), reads=("logits",), keeps=(log_softmax.name,)),
        Op(
            module=LOSS,
            makes=(loss, weight),
            reads=(log_softmax.name,),
            keeps=keeps,
            drops=("logits", log_softmax.name),
        ),
    ]
