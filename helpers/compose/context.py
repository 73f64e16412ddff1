"""Provides SplitContext: each cp rank gets its tokens of every sequence, and the attention of a GPT exchanges the rest.

It prepares a model for any plan with context parallelism, as ContextParallel (parallel/context_parallel) does for one
without other axes:

    attention    its core, between the projections, exchanges keys and values of the heads that tp has left on this rank
    positions    by index in the full sequence, also where a pipeline's first stage looks them up
    labels       the caller has shifted them on full sequences, so they are split like the tokens that they belong to
The gradients of a cp rank are partial sums, from its own tokens. Therefore cp ranks take part in the mean over dp:
gradients are averaged, and ZeRO shards, over dp x cp, as in Megatron-LM and torchtitan. Each rank divides its sum of
losses by the number of global targets over dp x cp, so this mean is a mean over the targets of the global batch.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn

from helpers.compose.forward_backward import RankBatch
from helpers.parallel.context_parallel import METHODS, split_sequence, token_indices
from helpers.parallel.context_parallel.context_parallel import SplitAttention
from helpers.specs import Plan


class SplitContext:
    """Splits sequences over the cp ranks in 2 cp chunks, of which rank r gets chunks r and 2 cp - 1 - r (zigzag).

    model: a GPT, already sharded by tp; it is changed in place. group: the cp ranks. With cp=1 nothing changes.
    """

    def __init__(self, model: nn.Module, plan: Plan, group: dist.ProcessGroup):
        self.plan, self.rank = plan, dist.get_rank(group)
        if plan.cp == 1:
            return
        self.longest = model.config.context
        self.attention = SplitAttention(METHODS[plan.cp_method], group)
        for block in model.blocks:
            block.attention.core = self.attention
        # a hook, because the model and the first stage of a pipeline both call this module, from different functions
        model.position_embedding.register_forward_pre_hook(self._global_positions)

    def split(self, batch: RankBatch) -> RankBatch:
        """Return the micro-batches, (B, T) each, with this rank's tokens alone, (B, about T / cp).

        All micro-batches of a step have one length, so a pipeline may run forwards between a forward and its backward.
        Raises ValueError where the ranks cannot share T tokens.
        """
        if self.plan.cp == 1:
            return batch
        self._set_split(batch.inputs[0].shape[1])
        return batch._replace(inputs=[*map(self._shard, batch.inputs)], targets=[*map(self._shard, batch.targets)])

    def _set_split(self, num_tokens: int) -> None:
        if not self.plan.cp <= num_tokens <= self.longest:
            raise ValueError(
                f"step got sequences of {num_tokens} tokens with cp={self.plan.cp}: give at least a token per cp rank, "
                f"and at most the model's context of {self.longest}"
            )
        self.attention.indices = token_indices(num_tokens, self.plan.cp, zigzag=True)
        lengths = [len(indices) for indices in self.attention.indices]
        if self.plan.sequence_parallel and any(length % self.plan.tp for length in lengths):
            raise ValueError(
                f"step got sequences of {num_tokens} tokens, of which the cp ranks have {lengths}, and with "
                f"sequence_parallel=True tp={self.plan.tp} must divide each of these: the nearest length that works is "
                f"a multiple of 2 * cp * tp = {2 * self.plan.cp * self.plan.tp}, or leave sequence_parallel out"
            )

    def _shard(self, tensor: Tensor) -> Tensor:
        return split_sequence(tensor, self.attention.indices, self.rank)

    def _global_positions(self, module: nn.Module, arguments: tuple[Tensor]) -> Tensor:
        """Replace positions among this rank's tokens (0, 1, 2 …) by those in the full sequence."""
        (local,) = arguments
        return self.attention.indices[self.rank].to(local.device)[local]
