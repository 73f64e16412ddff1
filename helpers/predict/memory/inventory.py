"""Lists every tensor that torch keeps for backward of the course's GPT, to the byte, and finds the step's peak.

activations.py has the papers' formulas, which assume 2-byte activations, 1-byte masks and materialized attention. This
file says what happens in this course without dropout and recomputation: fp32 or 16 bits throughout, torch's flash
attention, logits and loss. It writes the model (`helpers/workloads/gpt.py`) as a list of operations (`gpt_step`, with
layer_ops.py) and replays them on sizes alone (replay.py). Chapters 05 and 07 and some interview cards use `inventory`.

An `Op` is one operation: the tensors that it creates, the ones that autograd saves for backward, and the variables of
the Python code that end with it (`released`). With `passes_gradient`, backward hands the arriving gradient on and makes
no new tensor. Tensors are known by name, so the functions below pass names such as "query 0" (the query of block 0) to
each other. A `StepShape` has the sizes of the step: `full` is (B, T, h), and `stream` is the shape between the parts of
a block, which under sequence parallelism has a shard of the tokens.

The step is `loss = token_loss(model(tokens), targets); loss.backward()`, so no variable holds the logits during
backward, on torch 2.13, CPU. Under tp the model is `shard_tensor_parallel(model, group)` and the loss
`vocab_parallel_cross_entropy`. A GPU differs: norms keep fp32 statistics of 16-bit inputs there. Autocast differs,
too. Neither is predicted here. The peak is equal to the byte, too, except for sequences of a few tokens, where the
embedding's backward is the peak. Left out: parameters and their gradients; what a kernel takes inside an operation.

The operations were found by observing torch 2.13: its saved tensors, and every storage through a dispatch mode;
tests/predict/memory/test_inventory.py observes them again. B sequences of T tokens, H heads of d columns, h = H d, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from helpers.predict.memory import layer_ops
from helpers.predict.memory.layer_ops import StepShape, flash_attention
from helpers.predict.memory.replay import MemoryReplay, Op, SizedTensor
from helpers.predict.memory.states import weight_bytes
from helpers.specs import ModelSpec, Plan
from helpers.specs.checks import check_count, refuse_unmodelled_fields

CALLER = "the caller"  # stands for a module where no module created a tensor: token ids and targets


@dataclass(frozen=True, kw_only=True)
class SavedTensor:
    """One tensor that autograd saves for backward.

    module: the path of the first module that saves it. shared_with: other modules that save the same tensor. made_by:
    the module that created it, or CALLER.
    """

    module: str
    made_by: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The tensors that autograd has as backward starts (`rows`, in the order of forward), and the peak of the step.

    peak: bytes of all tensors at the worst moment, with gradients of activations and temporaries, but without
    parameters and their `.grad`. (With tied embeddings the head's gradient of the table is a temporary until the
    embedding's gradient is added to it.) where: the operation at the peak, such as "backward of the loss".
    """

    rows: tuple[SavedTensor, ...]
    peak: int
    where: str

    @property
    def total(self) -> int:
        """Bytes that are saved for backward; a shared tensor counts once."""
        return sum(row.num_bytes for row in self.rows)

    def by_module(self, depth: int | None = None, *, made: bool = False) -> dict[str, int]:
        """Bytes by the module that saves them, or with `made` by the module that created them.

        The course's memory meter counts a tensor where it is created, so `made` is what compares with a measurement.
        depth: how many names of a module's path count; 2 adds up "blocks.0", None lists every module.
        """
        sizes: dict[str, int] = {}
        for row in self.rows:
            path = ".".join((row.made_by if made else row.module).split(".")[:depth])
            sizes[path] = sizes.get(path, 0) + row.num_bytes
        return sizes


def inventory(model: ModelSpec, plan: Plan, *, batch: int | None = None) -> Inventory:
    """The tensors that one rank keeps of `batch` sequences (default: plan.micro_batch) of `model.seq` tokens each.

    The model is the course's GPT in the shape of `model`, trained without dropout. These fields of the plan count:
    `precision` (fp32, or else bfloat16 weights and activations throughout), `tp` and `sequence_parallel`. Raises
    ValueError for another architecture, a plan that splits layers or tokens, recomputes or materializes attention, and
    for a batch below 1.
    """
    _check(model, plan, batch)
    shape = StepShape(
        batch=plan.micro_batch if batch is None else batch, tokens=model.seq, num_layers=model.num_layers,
        num_heads=model.num_heads, hidden=model.hidden, vocab=model.vocab,
        dtype="float32" if weight_bytes(plan) == 4 else "bfloat16",
        tied=model.tied_embeddings, tp=plan.tp, sequence_parallel=plan.sequence_parallel and plan.tp > 1,
    )  # fmt: skip
    ops, replay = gpt_step(shape), MemoryReplay()
    for tensor in step_inputs(shape):
        replay.create(tensor)
    replay.forward(ops)
    rows = _rows(ops, replay.tensors)
    replay.backward(ops)
    return Inventory(rows=rows, peak=replay.peak, where=replay.where)


def _rows(ops: Sequence[Op], tensors: dict[str, SizedTensor]) -> tuple[SavedTensor, ...]:
    """Every tensor that a step saves, with the modules that save it."""
    keepers: dict[str, list[str]] = {}  # tensor -> the modules that save it
    for op in ops:
        for name in op.saved:
            if op.module not in keepers.setdefault(name, []):
                keepers[name].append(op.module)
    makers = {made.name: op.module for op in ops for made in op.creates}
    return tuple(_saved(tensors[name], makers.get(name, CALLER), *modules) for name, modules in keepers.items())


def _saved(tensor: SizedTensor, maker: str, module: str, *others: str) -> SavedTensor:
    return SavedTensor(
        module=module, made_by=maker, name=tensor.name, shape=tensor.shape, dtype=tensor.dtype,
        num_bytes=tensor.num_bytes, shared_with=others,
    )  # fmt: skip


def _check(model: ModelSpec, plan: Plan, batch: int | None) -> None:
    """Raise ValueError for a model, a plan or a batch whose tensors are not known here."""
    refuse_unmodelled_fields("inventory", model, plan)
    differing = {  # a field -> what the course's GPT has, and what this model has
        "num_kv_heads": (model.num_heads, model.kv_heads), "ffn_hidden": (4 * model.hidden, model.ffn),
        "gated": (False, model.gated), "bias": (True, model.bias), "norm": ("layer", model.norm),
        "positions": ("learned", model.positions),
    }  # fmt: skip
    for name, (of_gpt, given) in differing.items():
        if given != of_gpt:
            raise ValueError(
                f"inventory lists the tensors of the course's GPT, which has {name}={of_gpt!r}, but this model has "
                f"{given!r}; for other models use activations(), which follows the papers"
            )
    for axis in ("pp", "cp"):
        if getattr(plan, axis) > 1:
            raise ValueError(
                f"inventory is of all layers and tokens, but the plan has {axis}={getattr(plan, axis)}; "
                "set it to 1, or use activations(), which divides"
            )
    plan.check(model)
    for name, known in (("attention", "flash"), ("recompute", "none")):
        if getattr(plan, name) != known:
            raise ValueError(
                f"inventory does not know {name}={getattr(plan, name)!r}: set it to {known!r}, or use activations()"
            )
    plan.check_token_shards("inventory", model)
    if batch is not None:
        check_count("inventory", "batch", batch)


LOSS = "the loss"  # stands for a module where the operation belongs to the loss


def gpt_step(shape: StepShape) -> list[Op]:
    """The operations of forward: embeddings, blocks, final norm, head, loss.

    The replay must create the tensors of `step_inputs` first.
    """
    blocks = (op for layer in range(shape.num_layers) for op in _block(shape, layer))
    return [*_embeddings(shape), *blocks, *_head(shape)]


def step_inputs(shape: StepShape) -> list[SizedTensor]:
    """The tensors that the caller passes to the step."""
    return [SizedTensor(name, shape.full[:2], "int64") for name in ("token ids", "targets")]


def _block_input(layer: int) -> str:
    """The name of the tensor between blocks: what block `layer` gets, and what the block before it returns."""
    return f"input of block {layer}"


def _embeddings(shape: StepShape) -> list[Op]:
    """Token and position vectors, and their sum."""
    positions = SizedTensor("positions", shape.full[1:2], "int64")
    # With a tied table, the head's gradient of it is still there when the embedding's backward makes its own.
    tied_bytes = _table_gradient(shape).num_bytes if shape.tied else 0
    # `names`: of the token vectors and of the position vectors.
    ops, names = _both_tables(shape, tied_bytes) if shape.tp == 1 else layer_ops.embeddings(shape, tied_bytes)
    added = SizedTensor(_block_input(0), shape.stream, shape.dtype)
    return [
        Op(module="GPT", creates=(positions,)),
        *ops,
        Op(module="GPT", creates=(added,), inputs=names, released=names, passes_gradient=True),
    ]


def _both_tables(shape: StepShape, tied_bytes: int) -> tuple[list[Op], tuple[str, str]]:
    """The look-ups in the token and the position table, and the names of their results.

    tied_bytes: bytes of the head's gradient of a tied table, which exists while the embedding's backward runs.
    """
    token = SizedTensor("token vectors", shape.stream, shape.dtype)
    position = SizedTensor("position vectors", shape.stream[1:], shape.dtype)
    ops = [
        Op(module="token_embedding", creates=(token,), saved=("token ids",), backward_temporary=tied_bytes),
        Op(module="position_embedding", creates=(position,), saved=("positions",)),
    ]
    return ops, (token.name, position.name)


def _norm(shape: StepShape, module: str, source: str, result: str, released: tuple[str, ...] = ()) -> Op:
    """A norm saves its input, and the mean and 1 / deviation (rstd) of each token."""
    extra = [SizedTensor(f"{name} of {result}", (*shape.stream[:2], 1), shape.dtype) for name in ("mean", "rstd")]
    extra += layer_ops.norm_vectors(shape, result)  # empty without sequence parallelism
    creates, saved = (SizedTensor(result, shape.stream, shape.dtype), *extra), (source, *(one.name for one in extra))
    return Op(module=module, creates=creates, inputs=(source,), saved=saved, released=released)


def _linear(
    shape: StepShape, module: str, source: str, result: str, columns: int, released: tuple[str, ...] = ()
) -> Op:
    """A linear layer, which saves its input. columns: the width of its result."""
    made = SizedTensor(result, (*shape.stream[:2], columns), shape.dtype)
    return Op(module=module, creates=(made,), inputs=(source,), saved=(source,), released=released)


def _block(shape: StepShape, layer: int) -> list[Op]:
    """A block: attention and feed-forward, each with its residual sum.

    The block's own variable refers to its input until the block ends, and a part's variables refer to what the part
    gets until that part returns. This decides where each tensor is released.
    """
    path, x, middle, out = f"blocks.{layer}", _block_input(layer), f"middle of block {layer}", _block_input(layer + 1)
    return [
        *_attention(shape, path, layer),
        _residual(shape, path, f"projection {layer}", x, middle, ()),
        *_feed_forward(shape, path, layer, middle),
        _residual(shape, path, f"down {layer}", middle, out, (middle, x)),
    ]


def _residual(shape: StepShape, path: str, branch: str, x: str, out: str, released: tuple[str, ...]) -> Op:
    """out = x + branch. path: of the block. released: variables that end with the sum, beside the branch."""
    made = SizedTensor(out, shape.stream, shape.dtype)
    return Op(module=path, creates=(made,), inputs=(x, branch), released=(branch, *released), passes_gradient=True)


def _attention(shape: StepShape, path: str, layer: int) -> list[Op]:
    """Norm, query, key and value, attention itself, and the projection. Its result is "projection <layer>"."""
    normed, module = f"normed input {layer}", f"{path}.attention"
    heads = tuple(f"{name} {layer}" for name in ("query", "key", "value"))
    ops = [_norm(shape, f"{path}.attention_norm", _block_input(layer), normed)]
    if shape.tp > 1:
        ops += layer_ops.columns(shape, f"{module}.query", normed, dict.fromkeys(heads, shape.hidden // shape.tp))
    else:
        ops += [_linear(shape, f"{module}.{name.split()[0]}", normed, name, shape.hidden) for name in heads]
    mixed = f"mixed {layer}"
    ops.append(flash_attention(shape, module, heads, mixed))
    return [*ops, *_second(shape, f"{module}.projection", mixed, f"projection {layer}", (mixed, normed, *heads))]


def _second(shape: StepShape, module: str, source: str, result: str, released: tuple[str, ...]) -> list[Op]:
    """The second linear layer of a pair, back to h columns; under tp it is row-parallel."""
    if shape.tp > 1:
        return layer_ops.rows(shape, module, source, result, released)
    return [_linear(shape, module, source, result, shape.hidden, released)]


def _feed_forward(shape: StepShape, path: str, layer: int, x: str) -> list[Op]:
    """Norm, up, GELU and down. Its result is "down <layer>"."""
    normed, wide, active = (f"{name} {layer}" for name in ("normed middle", "up", "gelu"))
    module, width = f"{path}.feed_forward", 4 * shape.hidden // shape.tp
    made = SizedTensor(active, (*shape.full[:2], width), shape.dtype)
    return [
        _norm(shape, f"{path}.feed_forward_norm", x, normed),
        *_first(shape, f"{module}.up", normed, wide, width),
        Op(module=module, creates=(made,), inputs=(wide,), saved=(wide,), released=(wide,)),
        *_second(shape, f"{module}.down", active, f"down {layer}", (active, normed)),
    ]


def _first(
    shape: StepShape, module: str, source: str, result: str, width: int, released: tuple[str, ...] = ()
) -> list[Op]:
    """The first linear layer of a pair, or the head; under tp it is column-parallel, with `width` columns on a rank."""
    if shape.tp > 1:
        return layer_ops.columns(shape, module, source, {result: width}, released)
    return [_linear(shape, module, source, result, width, released)]


def _table_gradient(shape: StepShape) -> SizedTensor:
    """The head's gradient of a tied table, which stays until the embedding's is added: only their sum is `.grad`."""
    return SizedTensor("gradient of the tied table", (ceil(shape.vocab / shape.tp), shape.hidden), shape.dtype)


def _head(shape: StepShape) -> list[Op]:
    """The final norm, the head, and the loss."""
    last, normed = _block_input(shape.num_layers), "normed output"  # `last`: what the last block returned
    *before, head = _first(shape, "head", normed, "logits", ceil(shape.vocab / shape.tp), (normed,))
    return [
        _norm(shape, "final_norm", last, normed, (last,)),
        *before,
        replace(head, backward_creates=_table_gradient(shape)) if shape.tied else head,
        *(_loss(shape) if shape.tp == 1 else layer_ops.loss(shape, LOSS)),
    ]


def _loss(shape: StepShape) -> list[Op]:
    """Cross entropy, as torch computes it: log-softmax, and the mean of the targets' entries."""
    log_softmax = SizedTensor("log-softmax", (shape.batch * shape.tokens, shape.vocab), shape.dtype)
    loss, weight = (SizedTensor(name, (), shape.dtype) for name in ("loss", "weight of all targets"))
    saved = (log_softmax.name, "targets", weight.name)
    released = ("logits", log_softmax.name)
    return [
        Op(module=LOSS, creates=(log_softmax,), inputs=("logits",), saved=(log_softmax.name,)),
        Op(module=LOSS, creates=(loss, weight), inputs=(log_softmax.name,), saved=saved, released=released),
    ]
