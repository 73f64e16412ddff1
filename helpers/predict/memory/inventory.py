"""Every tensor that torch keeps for backward of the course's GPT, to the byte on a CPU, and the peak of a step on it.

`activations.py` has the papers' formulas, which assume 2-byte activations, 1-byte masks and materialized attention.
This file says what happens here: fp32 or 16 bits throughout, torch's own attention, torch's masks, logits and loss. The
list comes from replaying the operations (`gpt_ops.py`, `attention_ops.py`) on sizes alone (`replay.py`).

The step is `loss = token_loss(model(tokens), targets); loss.backward()`, so no variable holds the logits during
backward, on torch 2.13, CPU. Under tp the model is `shard_tensor_parallel(model, group)`, the loss
`vocab_parallel_cross_entropy` (tensor_ops.py). On a GPU it differs: masks are of 1 byte there, norms keep fp32
statistics of 16-bit inputs, and other kernels serve attention with dropout. Under autocast it differs, too. Neither is
predicted here. The peak is equal to the byte, too, but for sequences of a few tokens, where the embedding's backward is
the peak.
Left out: parameters and their gradients; the 5,056 bytes of generator state that each checkpoint keeps; what a kernel
takes inside an operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from helpers.predict.memory.attention_ops import Shape
from helpers.predict.memory.gpt_ops import given, gpt_step
from helpers.predict.memory.replay import Made, Op, Piece, Replay
from helpers.predict.memory.states import weight_bytes
from helpers.quantities.units import format_bytes
from helpers.specs import ModelSpec, Plan
from helpers.specs.checks import check_plain

CALLER = "the caller"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One tensor that autograd holds. module: the first that keeps it. shared_with: others that keep the same one.

    made_by: the module in which it was made, "the caller" for token ids and targets.
    """

    module: str
    made_by: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    shared_with: tuple[str, ...] = ()

    def __str__(self) -> str:
        shared = f", shared with {', '.join(self.shared_with)}" if self.shared_with else ""
        return f"{self.module}: {self.name} {self.shape} {self.dtype}, {format_bytes(self.num_bytes)}{shared}"


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What autograd holds as backward starts (`rows`, in the order of forward), and the peak of forward and backward.

    peak: bytes of all tensors at the worst moment, gradients of activations and temporaries among them, but parameters
    and what `.grad` of one points to. (With tied embeddings the head's gradient of the table waits for the embedding's:
    a temporary until then.) where: what runs then, for example "backward of the loss".
    """

    rows: tuple[Kept, ...]
    peak: int
    where: str

    @property
    def total(self) -> int:
        """Bytes that are kept for backward, each tensor once."""
        return sum(row.num_bytes for row in self.rows)

    def by_module(self, depth: int | None = None, *, made: bool = False) -> dict[str, int]:
        """Bytes by the module that keeps them, or with `made` by the one that made them, as the memory meter tells.

        depth: names in a path; 2 adds up "blocks.0", None every module.
        """
        sizes: dict[str, int] = {}
        for row in self.rows:
            path = ".".join((row.made_by if made else row.module).split(".")[:depth])
            sizes[path] = sizes.get(path, 0) + row.num_bytes
        return sizes

    def largest(self, most: int = 5) -> tuple[Kept, ...]:
        """The largest tensors, largest first; equal ones in the order of forward."""
        return tuple(sorted(self.rows, key=lambda row: -row.num_bytes)[:most])


def inventory(model: ModelSpec, plan: Plan, *, batch: int | None = None, dropout: float = 0.0) -> Inventory:
    """What one rank keeps of `batch` sequences (default: plan.micro_batch) of the course's GPT, of `model.seq` tokens.

    Of the plan count `precision` (fp32, or else bfloat16 weights and activations throughout), `attention`, `recompute`
    (as `helpers.parallel.shared.recompute` does it: "full" each block, "selective" what lies between the projections of
    attention), `tp` and `sequence_parallel`. dropout: the share, in training; under tp with `seed=None`. Raises
    ValueError for another architecture, a plan that splits layers or tokens or recomputes under tp, a batch below 1, or
    a dropout outside [0, 1).
    """
    _check(model, plan, batch, dropout)
    shape = Shape(
        batch=plan.micro_batch if batch is None else batch, tokens=model.seq, num_layers=model.num_layers,
        num_heads=model.num_heads, hidden=model.hidden, vocab=model.vocab, dropout=dropout > 0,
        dtype="float32" if weight_bytes(plan) == 4 else "bfloat16", attention=plan.attention, recompute=plan.recompute,
        tied=model.tied_embeddings, tp=plan.tp, sequence_parallel=plan.sequence_parallel and plan.tp > 1,
    )  # fmt: skip
    steps, replay = gpt_step(shape), Replay()
    for tensor in given(shape):
        replay.give(tensor)
    replay.forward(steps)
    rows = _rows(steps, replay.tensors)
    replay.backward(steps)
    return Inventory(rows=rows, peak=replay.peak, where=replay.where)


def _rows(steps: Sequence[Op | Piece], tensors: dict[str, Made]) -> tuple[Kept, ...]:
    keepers: dict[str, list[str]] = {}
    for step in steps:
        for name in step.takes if isinstance(step, Piece) else step.keeps:
            if step.module not in keepers.setdefault(name, []):
                keepers[name].append(step.module)
    ops = [op for step in steps for op in (step.ops if isinstance(step, Piece) else (step,))]
    makers = {made.name: op.module for op in ops for made in op.makes}
    return tuple(_kept(tensors[name], makers.get(name, CALLER), *modules) for name, modules in keepers.items())


def _kept(tensor: Made, maker: str, module: str, *others: str) -> Kept:
    return Kept(
        module=module, made_by=maker, name=tensor.name, shape=tensor.shape, dtype=tensor.dtype,
        num_bytes=tensor.num_bytes, shared_with=others,
    )  # fmt: skip


def _check(model: ModelSpec, plan: Plan, batch: int | None, dropout: float) -> None:
    check_plain("inventory", model, plan)
    gpt = dict(num_kv_heads=model.num_heads, ffn_hidden=4 * model.hidden, gated=False, bias=True, norm="layer")
    found = dict(num_kv_heads=model.kv_heads, ffn_hidden=model.ffn, gated=model.gated, bias=model.bias, norm=model.norm)
    gpt["positions"], found["positions"] = "learned", model.positions
    if other := next((name for name in gpt if gpt[name] != found[name]), None):
        raise ValueError(
            f"inventory lists the tensors of the course's GPT, which has {other}={gpt[other]!r}, but this model has "
            f"{found[other]!r}; for other models use activations(), which follows the papers"
        )
    if split := next((axis for axis in ("pp", "cp") if getattr(plan, axis) > 1), None):
        raise ValueError(
            f"inventory is of all layers and tokens, but the plan has {split}={getattr(plan, split)}; "
            "set it to 1, or use activations(), which divides"
        )
    plan.check(model)
    if plan.tp > 1 and plan.recompute != "none":
        raise ValueError(
            f"inventory does not know recompute={plan.recompute!r} under tp={plan.tp}: set it to 'none', or use "
            "activations()"
        )
    if plan.sequence_parallel and model.seq % plan.tp:
        raise ValueError(
            f"inventory: sequence_parallel cuts {model.seq} tokens into tp={plan.tp} equal parts; choose a seq that tp "
            "divides"
        )
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise ValueError(f"inventory: batch is {batch!r}, but it must be a whole number of at least 1")
    if not 0 <= dropout < 1:
        raise ValueError(f"inventory: dropout is {dropout!r}, but it must be 0 or more and below 1")
