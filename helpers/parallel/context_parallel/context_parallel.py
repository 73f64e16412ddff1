"""Provides ContextParallel, which trains a GPT on sequences that are split over a group of ranks.

Everything in a transformer but attention works on one token at a time, so a rank computes it for its own tokens with
full, replicated weights. Attention exchanges keys and values, in one of three ways. What follows from the split:

    positions    by global index; they restart where a document starts
    labels       shifted on the full sequence, before the split
    loss         the sum over a rank's tokens, divided by the number of labels in the global batch
    gradients    each rank has a partial sum, from its own tokens; one all-reduce (sum) per step makes them complete

A mean over each rank's own tokens would weight tokens differently wherever ranks have different numbers of labels.
With data parallelism beside it, the gradients are summed over dp x cp ranks, and the labels counted over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.parallel.context_parallel.all_gather import all_gather_attention
from helpers.parallel.context_parallel.ring import ring_attention, token_indices
from helpers.parallel.context_parallel.sequence import NO_LABEL, document_starts, split_sequence
from helpers.parallel.context_parallel.ulysses import ulysses_attention
from helpers.parallel.shared.collectives import all_reduce_in_buckets, broadcast_tensors
from helpers.workloads.gpt import GPT, token_loss

METHODS: dict[str, Callable[..., Tensor]] = {  # the names are those of `Plan.cp_method`
    "ring": ring_attention,
    "all_gather": all_gather_attention,
    "all_to_all": ulysses_attention,
}


class ContextParallel(nn.Module):
    """Runs `model` on N ranks, each of which has about 1/N of the tokens of every sequence.

    method: "ring", "all_gather" or "all_to_all" (Ulysses). zigzag: whether rank i has chunks i and 2N-1-i of 2N, which
    balances the work of a causal mask, or chunk i of N. The ranks start with the weights of group rank 0. Backward must
    come before the next forward where blocks are recomputed, because attention reads the split of the latest forward.
    Raises ValueError for an unknown method, or for a model with dropout, whose random masks are not split here.
    """

    def __init__(
        self, model: GPT, group: dist.ProcessGroup | None = None, *, method: str = "ring", zigzag: bool = True
    ):
        super().__init__()
        if method not in METHODS:
            raise ValueError(f"ContextParallel got method={method!r}; known are {', '.join(METHODS)}")
        if model.config.dropout:
            raise ValueError(
                f"ContextParallel got a model with dropout={model.config.dropout}, but it does not split random masks: "
                "build the model with dropout=0.0"
            )
        self.model, self.group, self.zigzag = model, group, zigzag
        self.core = split_attention(model, method, group)
        broadcast_tensors([*model.parameters(), *model.buffers()], group)

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """Token ids of the full sequences, (B, T) int64, to the logits of this rank's tokens, (B, T / N, V).

        tokens, documents: the same on every rank. documents: (B, T) int64, a number per token; a token attends to its
        own document. None: each sequence is one document. Raises ValueError where there are fewer tokens than ranks, or
        a document is longer than the model's context.
        """
        self._set_split(tokens, documents)
        positions = self._positions(tokens)
        return self.model(self.shard(tokens), self.shard(positions))

    def loss(
        self, tokens: Tensor, labels: Tensor, documents: Tensor | None = None, num_labels: int | None = None
    ) -> Tensor:
        """This rank's share of the mean loss: the sum of all ranks' shares is what one process gets, in nats per token.

        labels: (B, T) int64, of the full sequences (`shifted_labels`); -100 does not count. num_labels: how many labels
        count in the global batch, of which these sequences may be one micro-batch or the part of one replica; None: as
        many as `labels` has.
        """
        summed = token_loss(self(tokens, documents), self.shard(labels), reduction="sum")
        return summed / (num_labels or (labels != NO_LABEL).sum())

    def all_reduce_gradients(self) -> None:
        """Add up the ranks' gradients, after backward and before the optimizer's step."""
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        all_reduce_in_buckets(gradients, self.group)

    def shard(self, tensor: Tensor) -> Tensor:
        """This rank's tokens of a (B, T, ...) tensor, by the split of the latest forward."""
        return split_sequence(tensor, self.core.indices, dist.get_rank(self.group))

    def _set_split(self, tokens: Tensor, documents: Tensor | None) -> None:
        num_tokens, num_ranks = tokens.shape[1], dist.get_world_size(self.group)
        if num_tokens < num_ranks:
            raise ValueError(
                f"ContextParallel got sequences of {num_tokens} tokens for {num_ranks} ranks, but every rank needs a "
                "token: take longer sequences, or fewer ranks"
            )
        self.core.indices = token_indices(num_tokens, num_ranks, self.zigzag)
        self.core.starts = None if documents is None else document_starts(documents).cpu()

    def _positions(self, tokens: Tensor) -> Tensor:
        """The position of each token in its document, (B, T)."""
        index, starts = torch.arange(tokens.shape[1]).expand(tokens.shape), self.core.starts
        positions = index if starts is None else index - starts
        longest, context = int(positions.max()) + 1, self.model.config.context
        if longest > context:
            raise ValueError(
                f"ContextParallel got a document of {longest} tokens, the model's context is {context}: a rank has "
                "some of the tokens only, but their positions are those of the full document, so build a longer context"
            )
        return positions.to(tokens.device)


def split_attention(model: GPT, method: str, group: dist.ProcessGroup | None = None) -> SplitAttention:
    """Let every block of the model compute its attention by this method, a key of METHODS.

    Set `indices` of what it returns before a forward.
    """
    core = SplitAttention(METHODS[method], group)
    for block in model.blocks:
        block.attention.core = core
    return core


@dataclass
class SplitAttention:
    """The core of the model's attentions, which knows how the present sequences are split."""

    method: Callable[..., Tensor]
    group: dist.ProcessGroup | None
    indices: list[Tensor] | None = None
    starts: Tensor | None = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *, dropout_p: float, is_causal: bool) -> Tensor:
        return self.method(query, key, value, self.indices, self.group, self.starts)
