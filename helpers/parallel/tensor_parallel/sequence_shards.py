"""Provides the modules between sharded matrices, which work on a rank's tokens or heads: norms, positions, dropout.

Legend: N = ranks; B, T, h = batch, tokens, hidden; tokens are dimension 1 of (B, T, h).
A norm's weight is replicated, but on each rank it meets only that rank's tokens, so its gradient is a partial sum.
Without the all-reduce nothing fails: every rank silently trains its own norm. Dropout needs the right random numbers:

    mask for a tensor that is              must be                    otherwise
    the same on every rank (residuals      the same on every rank     the ranks diverge silently: each trains its own
      under plain tensor parallelism)                                   model
    sharded (heads; tokens under           different on every rank,   several heads or tokens drop the same elements,
      sequence parallelism)                  shards of one mask         and their noise is no longer independent

There are two ways to draw the second kind. With `seed=None` every rank draws the full mask from the common generator
and keeps its shard, so the step equals that of one process, but each rank draws N times as much. With a number as
`seed` each rank draws only its shard from its own stream, as Megatron does (Shoeybi et al. 2019, appendix), which is
equal in distribution but not in values. Each such stream is seeded by a number drawn from the common generator. It
therefore differs from call to call, and a recomputed block, which restores the common generator, gets the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.devices import fork_random
from helpers.parallel.shared.buckets import Slot
from helpers.parallel.shared.collectives import check_same_parameters
from helpers.parallel.tensor_parallel.conjugate import identity_all_reduce, split_all_gather
from helpers.workloads.gpt import fused_attention, materialized_attention

_NUM_SEEDS = 2**31  # the seed of a rank's stream is made from a random number below this


class SequenceParallelNorm(nn.LayerNorm):
    """LayerNorm of this rank's tokens, (B, T / N, h). Forward sends nothing; backward all-reduces 2 h elements."""

    @classmethod
    def from_norm(cls, norm: nn.LayerNorm, group: dist.ProcessGroup | None = None) -> SequenceParallelNorm:
        """Make one with the very parameters of `norm`."""
        # elementwise_affine=False: no parameters of its own, because it gets those of `norm`
        shard = cls(norm.normalized_shape, norm.eps, elementwise_affine=False)
        shard.weight, shard.bias, shard.group = norm.weight, norm.bias, group
        shard.elementwise_affine = norm.elementwise_affine
        return shard.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        parameters = [parameter for parameter in (self.weight, self.bias) if parameter is not None]
        if parameters:  # in one message, (2, h)
            parameters = identity_all_reduce(torch.stack(parameters), self.group).unbind()
        return F.layer_norm(x, self.normalized_shape, *parameters, eps=self.eps)


class SequenceParallelEmbedding(nn.Module):
    """Maps positions (T) to the embeddings of this rank's tokens, (T / N, h).

    In forward every rank looks up all positions and keeps its shard. Backward all-gathers the gradient, so that it is
    complete on every rank.
    """

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.weight, self.group = embedding.weight, group

    def forward(self, positions: Tensor) -> Tensor:
        return split_all_gather(F.embedding(positions, self.weight), self.group, dim=0)


@dataclass(frozen=True)
class ShardRandom:
    """Dropout on shards of a tensor that `group` stores together; `seed` is explained at the top of this file."""

    group: dist.ProcessGroup | None = None
    seed: int | None = None

    def dropout(self, x: Tensor, p: float, dim: int) -> Tensor:
        """Apply dropout to this rank's shard of a tensor that is sharded along `dim`."""
        if p == 0:
            return x
        if self.seed is not None:
            with self.rank_stream(x.device):
                return F.dropout(x, p)
        return x * self._mask_shard(x, p, dim)

    def attention(self, core: Callable, query: Tensor, key: Tensor, value: Tensor, *, dropout_p: float, **options):
        """Compute attention of this rank's heads, (B, H / N, T, d), with dropout of the attention weights.

        core: the function that computes attention, such as gpt.fused_attention; options are its own.

        Without a seed, dropout needs the attention matrices (B, H / N, T, T) in memory, because a fused kernel accepts
        no mask from outside.
        """
        if not dropout_p:
            return core(query, key, value, dropout_p=0.0, **options)
        if self.seed is not None:
            with self.rank_stream(query.device):
                return core(query, key, value, dropout_p=dropout_p, **options)
        dropout = partial(self.dropout, dim=1)  # 1: the heads
        return materialized_attention(query, key, value, dropout_p=dropout_p, dropout=dropout, **options)

    @contextmanager
    def rank_stream(self, device: torch.device | str = "cpu") -> Iterator[None]:
        """Draw this rank's own random numbers inside the `with`; the common generator advances by one number only."""
        common = torch.randint(_NUM_SEEDS, ()).item()
        with fork_random(device):
            # no two ranks of the group get the same number
            torch.manual_seed((common + self.seed) * dist.get_world_size(self.group) + dist.get_rank(self.group))
            yield

    def _mask_shard(self, x: Tensor, p: float, dim: int) -> Tensor:
        """Draw the full mask and return this rank's shard of it."""
        num_ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        shape = [size * num_ranks if d == dim else size for d, size in enumerate(x.shape)]
        mask = F.dropout(x.new_ones(shape), p)  # 0 or 1 / (1 - p), as the device itself draws it
        return mask.narrow(dim, rank * x.shape[dim], x.shape[dim]).clone()


class ShardDropout(nn.Module):
    """nn.Dropout for a shard of a tensor that is sharded along `dim`. It sends nothing."""

    def __init__(self, p: float, random: ShardRandom, dim: int):
        super().__init__()
        self.p, self.random, self.dim = p, random, dim

    def forward(self, x: Tensor) -> Tensor:
        return self.random.dropout(x, self.p, self.dim) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}, dim={self.dim}"


def sequence_shard(module: nn.Module, group: dist.ProcessGroup | None, dim: int, random: ShardRandom) -> nn.Module:
    """Return a norm, dropout or position embedding that works on this rank's tokens, which are dimension `dim`."""
    if isinstance(module, nn.LayerNorm):
        return SequenceParallelNorm.from_norm(module, group)
    if isinstance(module, nn.Embedding):
        return SequenceParallelEmbedding(module, group)
    return ShardDropout(module.p, random, dim).train(module.training)


def attention_core(attention: nn.Module, random: ShardRandom) -> Callable | None:
    """Return the core of an Attention whose dropout masks fit its sharded heads; None where it has no dropout.

    The core is the function of query, key and value that an Attention calls. `materialized` means that it stores the
    full matrix of attention weights, instead of using a fused kernel.
    """
    core = materialized_attention if attention.materialized else fused_attention
    return partial(random.attention, core) if attention.dropout else None


@torch.no_grad()
def check_same_models(model: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Raise ValueError on every rank if the ranks' models differ or, where there is dropout, their random generators.

    It sends names and shapes, two sums per parameter, and the generator's next numbers, without advancing it.
    """
    tensors = dict(model.named_parameters())
    # a Slot is a parameter with its name and number
    check_same_parameters([Slot(index, *named) for index, named in enumerate(tensors.items())], group)
    device = next(iter(tensors.values())).device
    fingerprints = [_fingerprint(tensor) for tensor in tensors.values()]
    if any(_has_dropout(module) for module in model.modules()):
        tensors["random generator"] = _next_numbers(device)
        fingerprints.append(tensors["random generator"])
    local = torch.stack(fingerprints).to(device)  # (parameters, 2), and one more row for the generator
    of_ranks = [torch.empty_like(local) for _ in range(dist.get_world_size(group))]
    dist.all_gather(of_ranks, local, group=group)
    for rank, other in enumerate(of_ranks):
        differs = (other.nan_to_num(7.0) != of_ranks[0].nan_to_num(7.0)).any(-1)  # any number: NaN equals NaN then
        if differs.any():
            raise ValueError(_difference_message(rank, [*tensors][int(differs.nonzero()[0])]))


def _has_dropout(module: nn.Module) -> bool:
    """Whether it is an nn.Dropout, or has a probability as its attribute `dropout`."""
    p = module.p if isinstance(module, nn.Dropout) else getattr(module, "dropout", 0.0)
    return isinstance(p, float) and p > 0


def _fingerprint(tensor: Tensor) -> Tensor:
    """Return two sums that differ if two random tensors do: of the values, and of the values weighted by position."""
    values = tensor.detach().double().flatten().cpu()
    return torch.stack([values.sum(), values @ torch.linspace(1, 2, values.numel(), dtype=torch.float64)])


def _next_numbers(device: torch.device) -> Tensor:
    """Return two numbers that the generator would draw next, as a fingerprint of its state, without advancing it."""
    with fork_random(device):
        return torch.rand(2, dtype=torch.float64, device=device).cpu()


def _difference_message(rank: int, name: str) -> str:
    if name == "random generator":
        return (
            f"the random generators of rank 0 and rank {rank} differ, so dropout would make them diverge: call "
            "torch.manual_seed with the same number on all ranks of this group before sharding"
        )
    return (
        f"rank {rank} holds another {name} than rank 0, so their shards would not fit together: build the model after "
        "torch.manual_seed with the same number on all ranks of this group, or load the same checkpoint"
    )
