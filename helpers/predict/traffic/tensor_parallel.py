"""Predicts the messages of a tensor-parallel step of the course's GPT on one rank, as a log.

Chapter 07, its lab and the interview cards use it. SP is sequence parallelism. b sequences of s tokens, h hidden, t
ranks. A block costs, for each micro-batch (Shoeybi et al. 2019, section 3; with SP Korthikanti et al. 2022, section
4.2.2):

                        forward                                  backward
    attention           1 all_reduce of b s h                    1 all_reduce of b s h
    feed-forward        1 all_reduce of b s h                    1 all_reduce of b s h
    the same, SP        1 all_gather, 1 reduce_scatter each      1 all_gather, 1 reduce_scatter each, and
                                                                 1 all_gather of the input that was kept as shards

On a ring an all_reduce is a reduce_scatter and an all_gather, so sequence parallelism sends the same bytes, except for
that last all_gather and for the gradients of norms and of the biases of row-parallel layers. These gradients come from
a rank's own tokens only, so each needs an all_reduce of a few h. Outside the blocks travel the embedding's sum, the
head's gradient, and three numbers per token in the loss (the maximum, the sum of exponentials, the target's logit),
but never the logits.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.predict.traffic.predicted_log import PredictedLog
from helpers.records import CommLog
from helpers.specs import ModelSpec, Plan
from helpers.specs.checks import check_count, refuse_unmodelled_fields


def tensor_parallel_traffic(model: ModelSpec, plan: Plan, *, batch: int, dtype_bytes: int = 4) -> CommLog:
    """Every operation of a step on one rank, in order: forward and backward of `batch` sequences.

    Of the plan count `tp`, `sequence_parallel` and `recompute`. batch: sequences of one micro-batch; its operations
    come once for each of `plan.num_microbatches`. Raises ValueError where the plan does not fit the model, or for pp
    and cp, which are not predicted here.
    """
    _check(model, plan, batch)
    traffic = PredictedLog(plan.tp, dtype_bytes=dtype_bytes)
    for _ in range(plan.num_microbatches):
        stage_messages(model, plan, range(model.num_layers), batch=batch, traffic=traffic)
    return traffic.log


def stage_messages(
    model: ModelSpec, plan: Plan, blocks: Sequence[int], *, batch: int, traffic: PredictedLog, first: bool = True,
    last: bool = True, product_bytes: int | None = None,
) -> None:  # fmt: skip
    """Add to `traffic` what the layers of one pipeline stage send for one micro-batch.

    The stage has `blocks`, with embeddings if `first` and a head if `last`. recompute="full" sends a block's forward
    again before its backward; "selective" recomputes only what sends nothing. product_bytes: bytes per element of the
    results of matrix products and of their gradients, which autocast has in 16 bits; None: as all other tensors.
    """
    if plan.tp > 1:
        step = _SequenceParallel if plan.sequence_parallel else _TensorParallel
        step(model, plan, batch, traffic, product_bytes or traffic.dtype_bytes).run(blocks, first, last)


def layer_payload_bytes(*, batch: int, seq: int, hidden: int, dtype_bytes: int = 4) -> int:
    """Bytes that one block passes to all_reduce in forward and backward without SP: (2 + 2) b s h elements."""
    return (2 + 2) * batch * seq * hidden * dtype_bytes


def layer_sent_bytes(*, batch: int, seq: int, hidden: int, tp: int, dtype_bytes: int = 4) -> float:
    """Bytes that a ring makes a rank send for one block: 2 (t-1)/t of the payload, with SP or without.

    Not included is SP's second all_gather of kept inputs in backward, which adds a quarter: 2 (t-1)/t b s h elements.
    """
    return 2 * (tp - 1) / tp * layer_payload_bytes(batch=batch, seq=seq, hidden=hidden, dtype_bytes=dtype_bytes)


class _TensorParallel:
    """Adds the messages without sequence parallelism.

    Between the parts of a block every rank has the full (b, s, h), so outputs and gradients of inputs are all-reduced.
    A part (attention, or the feed-forward) is a column-parallel layer and then a row-parallel one. The methods from
    `before_columns` on say what is sent at each end of such a layer; the subclass replaces them.
    """

    def __init__(self, model: ModelSpec, plan: Plan, batch: int, traffic: PredictedLog, product_bytes: int) -> None:
        self.model, self.plan, self.traffic, self.product_bytes = model, plan, traffic, product_bytes
        self.tokens = (batch, model.seq)
        self.stream = (batch, model.seq, model.hidden)
        # the parts of a block that are split over tp: experts are replicated, so their ranks send nothing here
        self.parts = ("attention", "feed_forward") if model.num_experts == 1 else ("attention",)

    def run(self, blocks: Sequence[int], first: bool, last: bool) -> None:
        """Forward and backward of one micro-batch."""
        if first:  # each rank looks up ids of its vocabulary shard, so the results are partial sums, too
            self.after_rows("token_embedding, forward", self.traffic.dtype_bytes)
        for i in blocks:
            self.forward(i, "forward")
        if last:
            self.before_columns("head, forward")
            self.loss()
            self.columns_backward("head, backward")
            self.norm_backward("final_norm, backward")
        for i in reversed(blocks):
            if self.plan.recompute == "full":
                self.forward(i, "recomputed")
            self.backward(i)
        if first:
            self.embeddings_backward("embeddings, backward")

    def forward(self, i: int, when: str) -> None:
        """Forward of block i. when: "forward" or "recomputed", for the text of the messages."""
        for name in self.parts:
            self.before_columns(f"blocks.{i}.{name}, {when}")
            self.after_rows(f"blocks.{i}.{name}, {when}", self.product_bytes)

    def backward(self, i: int) -> None:
        """Backward of block i: its parts in reverse order."""
        for name in reversed(self.parts):
            self.rows_backward(f"blocks.{i}.{name}, backward")
            self.columns_backward(f"blocks.{i}.{name}, backward")
            if name == "attention":  # the part that has key and value heads
                self.copied_heads_backward(f"blocks.{i}.{name}, backward")
            self.norm_backward(f"blocks.{i}.{name}_norm, backward")

    def loss(self) -> None:
        """The three numbers per token: one all-reduce takes the maximum, and one adds up the other two."""
        width = max(4, self.traffic.dtype_bytes)  # the loss is computed in fp32 at least
        self.traffic.add("all_reduce", self.tokens, "the loss: maximum, forward", dtype_bytes=width, reduce_op="max")
        self.traffic.add("all_reduce", (2, *self.tokens), "the loss: sum and target, forward", dtype_bytes=width)

    def copied_heads_backward(self, where: str) -> None:
        """With fewer key and value heads than ranks, the gradients of copied heads are all-reduced as full matrices."""
        if self.plan.tp <= self.model.kv_heads:
            return
        width = self.model.kv_heads * self.model.head_dim
        for name in ("value", "key"):
            if self.model.bias:
                self.traffic.add("all_reduce", (width,), f"{where}: copies of {name}")
            self.traffic.add("all_reduce", (width, self.model.hidden), f"{where}: copies of {name}")

    def before_columns(self, where: str) -> None:
        """Before a column-parallel layer. Every rank has the full input, so nothing is sent."""

    def after_rows(self, where: str, width: int) -> None:
        """After a row-parallel layer: its partial sums are added."""
        self.traffic.add("all_reduce", self.stream, where, dtype_bytes=width)

    def rows_backward(self, where: str) -> None:
        """The gradient of a row-parallel layer's output. Every rank has it, so nothing is sent."""

    def columns_backward(self, where: str) -> None:
        """The gradient of a column-parallel layer's input: its partial sums are added."""
        self.traffic.add("all_reduce", self.stream, where, dtype_bytes=self.product_bytes)

    def norm_backward(self, where: str) -> None:
        """The gradients of a norm. Every rank has them, so nothing is sent."""

    def embeddings_backward(self, where: str) -> None:
        """The gradient of the embedding's sum. Every rank has it, so nothing is sent."""


class _SequenceParallel(_TensorParallel):
    """Adds the messages with sequence parallelism.

    Between the parts of a block a rank has (b, s / t, h), which is gathered before a part and reduce-scattered after.
    `traffic.add` takes the shape of the rank's shard for an all_gather, and of the full tensor for other operations.
    """

    def shard(self) -> tuple[int, ...]:
        """The shape of a rank's tokens between the parts of a block."""
        batch, tokens, hidden = self.stream
        return (batch, tokens // self.plan.tp, hidden)

    def before_columns(self, where: str) -> None:
        self.traffic.add("all_gather", self.shard(), where)

    def after_rows(self, where: str, width: int) -> None:
        self.traffic.add("reduce_scatter", self.stream, where, dtype_bytes=width)

    def rows_backward(self, where: str) -> None:
        if self.model.bias:  # added to the rank's own tokens
            self.traffic.add("all_reduce", self.stream[2:], f"{where}: the bias")
        self.traffic.add("all_gather", self.shard(), where, dtype_bytes=self.product_bytes)

    def columns_backward(self, where: str) -> None:
        self.traffic.add("all_gather", self.shard(), f"{where}: the kept input")
        self.traffic.add("reduce_scatter", self.stream, where, dtype_bytes=self.product_bytes)

    def norm_backward(self, where: str) -> None:
        """The gradients of a norm come from the rank's own tokens, so they are partial sums."""
        self.traffic.add("all_reduce", (self.model.params_per_norm // self.model.hidden, self.model.hidden), where)

    def embeddings_backward(self, where: str) -> None:
        """Both tables need the gradients of all tokens; for the positions they are added up over the batch before."""
        if self.model.positions == "learned":
            self.traffic.add("all_gather", self.shard()[1:], f"{where}: positions")
        self.traffic.add("all_gather", self.shard(), where)


def _check(model: ModelSpec, plan: Plan, batch: int) -> None:
    """Raise ValueError for a model, a plan or a batch that is not predicted here."""
    refuse_unmodelled_fields("tensor_parallel_traffic", model, plan)
    plan.check(model)
    check_count("tensor_parallel_traffic", "batch", batch)
    for axis in ("pp", "cp"):
        if getattr(plan, axis) > 1:
            raise ValueError(
                f"tensor_parallel_traffic: the plan has {axis}={getattr(plan, axis)}, but only tensor parallelism is "
                "predicted here; set it to 1, or ask axis_traffic"
            )
    plan.check_token_shards("tensor_parallel_traffic", model)
