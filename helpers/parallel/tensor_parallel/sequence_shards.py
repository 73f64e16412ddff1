"""What lies between the cut matrices, on a rank's part of the tokens or heads: norms, positions, dropout.

Legend: N = ranks, B, T, h = batch, tokens, hidden; tokens are dimension 1 of (B, T, h).
A norm's weight is whole on every rank, but meets the rank's tokens only, so its gradient there is a part of the sum.
Without the all-reduce nothing fails: every rank trains a norm of its own. Random numbers part the ranks, too:

    mask for a tensor that is              must be                    if it is wrong
    the same on every rank (residuals      the same on every rank     ranks part: each trains a model of its own, and
      under plain tensor parallelism)                                   nothing says so
    parts on the ranks (heads; tokens      another on every rank,     several heads or tokens drop the same places:
      under sequence parallelism)            parts of a whole one       their noise is no longer independent

Two ways to the second kind. `seed=None`: every rank draws the whole mask from the common generator and keeps its part,
so the step equals that of one process; it draws N times as much. A number as `seed`: each rank draws its part only,
from a stream of its own, as Megatron does (Shoeybi et al. 2019, appendix): equal in distribution, not in values. The
stream begins at a number drawn from the common generator: so it moves on, and a recomputed block sees it once more.
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
from helpers.workloads.gpt import materialized_attention

_STREAMS = 2**31


class SequenceParallelNorm(nn.LayerNorm):
    """LayerNorm of this rank's tokens, (B, T / N, h). Forward: nothing. Backward: all-reduce of 2 h numbers."""

    @classmethod
    def from_norm(cls, norm: nn.LayerNorm, group: dist.ProcessGroup | None = None) -> SequenceParallelNorm:
        """The same parameters, not copies."""
        shard = cls(norm.normalized_shape, norm.eps, elementwise_affine=False)
        shard.weight, shard.bias, shard.group = norm.weight, norm.bias, group
        shard.elementwise_affine = norm.elementwise_affine
        return shard.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        own = [parameter for parameter in (self.weight, self.bias) if parameter is not None]
        whole = identity_all_reduce(torch.stack(own), self.group).unbind() if own else ()  # (2, h), one message
        return F.layer_norm(x, self.normalized_shape, *whole, eps=self.eps)


class SequenceParallelEmbedding(nn.Module):
    """Positions (T) to the embeddings of this rank's tokens, (T / N, h).

    Forward: every rank looks up all and keeps its part. Backward: all-gather of the gradient, so it is whole.
    """

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.weight, self.group = embedding.weight, group

    def forward(self, positions: Tensor) -> Tensor:
        return split_all_gather(F.embedding(positions, self.weight), self.group, dim=0)


@dataclass(frozen=True)
class ShardRandom:
    """Dropout on parts: `group` holds the whole; `seed` as above."""

    group: dist.ProcessGroup | None = None
    seed: int | None = None

    def dropout(self, x: Tensor, p: float, dim: int) -> Tensor:
        """Dropout of a part of a tensor that is cut along `dim`."""
        if p == 0:
            return x
        if self.seed is not None:
            with self.own_stream(x.device):
                return F.dropout(x, p)
        return x * self._own_part_of_a_mask(x, p, dim)

    def attention(self, core: Callable, query: Tensor, key: Tensor, value: Tensor, *, dropout_p: float, **options):
        """Attention of this rank's heads, (B, H / N, T, d). `core`: what computes it where nothing is dropped out.

        Without a seed dropout needs the maps (B, H / N, T, T) in memory: a fused kernel takes no mask from outside.
        """
        if not dropout_p:
            return core(query, key, value, dropout_p=0.0, **options)
        if self.seed is not None:
            with self.own_stream(query.device):
                return core(query, key, value, dropout_p=dropout_p, **options)
        own_part = partial(self.dropout, dim=1)
        return materialized_attention(query, key, value, dropout_p=dropout_p, dropout=own_part, **options)

    @contextmanager
    def own_stream(self, device: torch.device | str = "cpu") -> Iterator[None]:
        """In here, random numbers of this rank's own; the common generator goes on as if only one had been drawn."""
        common = torch.randint(_STREAMS, ()).item()
        with fork_random(device):
            torch.manual_seed((common + self.seed) * dist.get_world_size(self.group) + dist.get_rank(self.group))
            yield

    def _own_part_of_a_mask(self, x: Tensor, p: float, dim: int) -> Tensor:
        num_ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        shape = [size * num_ranks if d == dim else size for d, size in enumerate(x.shape)]
        mask = F.dropout(x.new_ones(shape), p)  # 0 or 1 / (1 - p), as the device itself draws it
        return mask.narrow(dim, rank * x.shape[dim], x.shape[dim]).clone()


class ShardDropout(nn.Module):
    """nn.Dropout for a part of a tensor that is cut along `dim`. It sends nothing."""

    def __init__(self, p: float, random: ShardRandom, dim: int):
        super().__init__()
        self.p, self.random, self.dim = p, random, dim

    def forward(self, x: Tensor) -> Tensor:
        return self.random.dropout(x, self.p, self.dim) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}, dim={self.dim}"


def sequence_shard(module: nn.Module, group: dist.ProcessGroup | None, dim: int, random: ShardRandom) -> nn.Module:
    """A norm, dropout or embedding of positions, for this rank's part of the tokens, which are dimension `dim`."""
    if isinstance(module, nn.LayerNorm):
        return SequenceParallelNorm.from_norm(module, group)
    if isinstance(module, nn.Embedding):
        return SequenceParallelEmbedding(module, group)
    return ShardDropout(module.p, random, dim).train(module.training)


def attention_core(attention: nn.Module, random: ShardRandom) -> Callable | None:
    """What the course's Attention puts in the place of its core, so that its heads' masks fit; None without dropout."""
    core = materialized_attention if attention.materialized else F.scaled_dot_product_attention
    return partial(random.attention, core) if attention.dropout else None


@torch.no_grad()
def check_same_models(model: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Raise ValueError on every rank if the ranks' models differ or, where there is dropout, their random generators.

    Sends names and shapes, two sums a parameter, and what the generator will give next; nothing is drawn.
    """
    tensors = dict(model.named_parameters())
    check_same_parameters([Slot(index, *named) for index, named in enumerate(tensors.items())], group)
    device = next(iter(tensors.values())).device
    prints = [_fingerprint(tensor) for tensor in tensors.values()]
    if any(_drops_out(module) for module in model.modules()):
        tensors["random generator"] = _next_numbers(device)
        prints.append(tensors["random generator"])
    mine = torch.stack(prints).to(device)  # (P, 2)
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, mine, group=group)
    for rank, other in enumerate(theirs):
        differs = (other.nan_to_num(7.0) != theirs[0].nan_to_num(7.0)).any(-1)
        if differs.any():
            raise ValueError(_unequal(rank, [*tensors][int(differs.nonzero()[0])]))


def _drops_out(module: nn.Module) -> bool:
    """A layer of dropout, or one that keeps its probability as `dropout`."""
    p = module.p if isinstance(module, nn.Dropout) else getattr(module, "dropout", 0.0)
    return isinstance(p, float) and p > 0


def _fingerprint(tensor: Tensor) -> Tensor:
    """Two sums that differ where two random tensors do: of the values, and of the values by place."""
    values = tensor.detach().double().flatten().cpu()
    return torch.stack([values.sum(), values @ torch.linspace(1, 2, values.numel(), dtype=torch.float64)])


def _next_numbers(device: torch.device) -> Tensor:
    with fork_random(device):
        return torch.rand(2, dtype=torch.float64, device=device).cpu()


def _unequal(rank: int, name: str) -> str:
    if name == "random generator":
        return (
            f"the random generators of rank 0 and rank {rank} differ, so dropout would part them: call "
            "torch.manual_seed with the same number on all ranks of this group before sharding"
        )
    return (
        f"rank {rank} holds another {name} than rank 0, so their parts would not fit together: build the model after "
        "torch.manual_seed with the same number on all ranks of this group, or load the same checkpoint"
    )
