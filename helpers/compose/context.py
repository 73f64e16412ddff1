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
from helpers.parallel.context_parallel import split_attention, split_sequence, token_indices
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
        self.attention = split_attention(model, plan.cp_method, group)
        # a hook, because the model and the first stage of a pipeline both call this module, from different functions
        model.position_embedding.register_forward_pre_hook(self._global_positions)

    def split(self, batch: RankBatch) -> RankBatch:
        """Return the micro-batches, (B, T) each, with this rank's tokens alone, (B, about T / cp).

        All micro-batches of a step have one length, so a pipeline may run forwards between a forward and its backward.
        Raises ValueError where the ranks cannot share T tokens.
        """
        if self.plan.cp == 1:
            return batch
        num_tokens = batch.inputs[0].shape[1]
        if num_tokens > self.longest:  # a rank has fewer tokens, so the model itself would not notice
            raise ValueError(
                f"step got sequences of {num_tokens} tokens, and the model's context is {self.longest}: cut the "
                "sequences, or build the model with a longer context"
            )
        self.attention.indices = tokens_of_ranks(num_tokens, self.plan)
        return batch._replace(inputs=[*map(self._shard, batch.inputs)], targets=[*map(self._shard, batch.targets)])

    def _shard(self, tensor: Tensor) -> Tensor:
        return split_sequence(tensor, self.attention.indices, self.rank)

    def _global_positions(self, module: nn.Module, arguments: tuple[Tensor]) -> Tensor:
        """Replace positions among this rank's tokens (0, 1, 2 …) by those in the full sequence."""
        (local,) = arguments
        return self.attention.indices[self.rank].to(local.device)[local]


def tokens_of_ranks(num_tokens: int, plan: Plan) -> list[Tensor]:
    """Return for each cp rank the indices of its tokens in a sequence of so many.

    Raises ValueError where there are fewer tokens than ranks, and where tp cannot split a rank's tokens once more.
    """
    if num_tokens < plan.cp:
        raise ValueError(
            f"a sequence of {num_tokens} tokens cannot be split over cp={plan.cp} ranks, because each needs a token: "
            f"give longer sequences, or use cp={num_tokens}"
        )
    indices = token_indices(num_tokens, plan.cp, zigzag=True)
    lengths = [len(each) for each in indices]
    if plan.sequence_parallel and any(length % plan.tp for length in lengths):
        raise ValueError(
            f"sequence_parallel=True splits the tokens of a cp rank over tp={plan.tp} ranks, but of {num_tokens} "
            f"tokens the cp={plan.cp} ranks have {', '.join(map(str, lengths))}: leave sequence_parallel out, or give "
            f"sequences of a multiple of cp * tp = {plan.cp * plan.tp} tokens"
        )
    return indices
