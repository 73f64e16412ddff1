"""What chapter 07 tries beside a plain step: other cuts, a loss with a mistake, norms, seeds, what is forgotten."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.observe.comms import record_comms
from helpers.observe.tensor_runs import TINY
from helpers.parallel import tensor_parallel as tp
from helpers.parallel.shared.clip import clip_grad_norm_, gradient_norm
from helpers.parallel.tensor_parallel.conjugate import all_reduce_identity
from helpers.parallel.tensor_parallel.sequence_shards import SequenceParallelNorm
from helpers.parallel.tensor_parallel.tensor_plan import Cut
from helpers.ranks import Ranks
from helpers.workloads import GPT, characters

CUTS = ("columns", "rows")


# ---- two matrices, four orders ----


def one_sum_is_enough(cut_a: str, cut_b: str) -> bool:
    """GeLU(XA)B on two ranks that do not talk before they add up what they have: is it what one process gives?"""
    torch.manual_seed(0)
    x, a, b = (torch.randn(*shape, dtype=torch.float64) for shape in [(4, 6), (6, 8), (8, 6)])
    try:
        found = sum(_addend(x, a, b, cut_a, cut_b, rank) for rank in range(2))
    except RuntimeError:  # shapes that do not meet: a rank lacks columns of the other
        return False
    right = F.gelu(x @ a) @ b
    return found.shape == right.shape and torch.allclose(found, right)


def _addend(x: Tensor, a: Tensor, b: Tensor, cut_a: str, cut_b: str, rank: int) -> Tensor:
    own = x @ a.chunk(2, 1)[rank] if cut_a == "columns" else x.chunk(2, 1)[rank] @ a.chunk(2, 0)[rank]
    hidden = F.gelu(own)
    if cut_b == "columns":
        return hidden @ b.chunk(2, 1)[rank]
    return (hidden if cut_a == "columns" else hidden.chunk(2, 1)[rank]) @ b.chunk(2, 0)[rank]


# ---- heads ----


def held_keys(config) -> tuple[int, ...]:
    """On a rank: the shape of the part of a key weight."""
    return tuple(tp.shard_tensor_parallel(GPT(config)).blocks[0].attention.key.weight.shape)


def attention_by_two(cut: Cut, hidden: int = 8, head: int = 2) -> tuple[Tensor, Tensor]:
    """Attention of a fused query, key and value: of one process, and of two ranks that hold the parts of `cut`."""
    torch.manual_seed(0)
    fused = torch.randn(3 * hidden, hidden, dtype=torch.float64)
    x = torch.randn(1, 5, hidden, dtype=torch.float64)

    def attend(weight: Tensor) -> Tensor:
        parts = F.linear(x, weight).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (-1, head)).transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)

    return attend(fused), torch.cat([attend(cut.take(fused, rank)) for rank in range(2)], dim=-1)


# ---- the loss ----


def loss_of_parts(own_maximum: bool = False, scale: float = 1.0) -> tuple[bool, float, float, int]:
    """On a rank: 64 tokens over 2,048 words. Is all right? The loss, that of one process, bytes handed over."""
    torch.manual_seed(0)
    logits, targets = scale * torch.randn(64, 2048), torch.randint(0, 2048, (64,))
    targets[:5] = -100  # these do not count
    n, rank = dist.get_world_size(), dist.get_rank()
    part = logits.chunk(n, -1)[rank].clone().requires_grad_()
    with record_comms() as recorder:
        value = (with_own_maximum if own_maximum else tp.vocab_parallel_cross_entropy)(part, targets)
        value.backward()
    expected = F.cross_entropy(logits.requires_grad_(), targets)
    expected.backward()
    right = torch.allclose(value, expected) and torch.allclose(part.grad, logits.grad.chunk(n, -1)[rank], atol=1e-7)
    return right, value.item(), expected.item(), recorder.log.payload_bytes()


def with_own_maximum(logits: Tensor, targets: Tensor) -> Tensor:
    """As it is often written: every rank shifts by the maximum of its own logits."""
    shifted = logits - logits.max(-1, keepdim=True).values.detach()
    own = targets - dist.get_rank() * logits.shape[-1]
    here = (own >= 0) & (own < logits.shape[-1])
    target = shifted.gather(-1, own.where(here, 0).unsqueeze(-1)).squeeze(-1) * here
    total, target = (all_reduce_identity(one, None) for one in (shifted.exp().sum(-1), target))
    return (total.log() - target)[targets != -100].mean()


# ---- what is copied ----


def norms() -> list[float]:
    """On a rank: the norm of all gradients as every rank's squares give it, and as it is."""
    torch.manual_seed(0)
    group, model = dist.group.WORLD, tp.shard_tensor_parallel(GPT(TINY).double())
    tokens, targets = characters().batch(0, 8, 16)
    tp.vocab_parallel_cross_entropy(model(tokens), targets).backward()
    added = gradient_norm([parameter.grad for parameter in model.parameters()], group=group)
    return [added.item(), clip_grad_norm_(model.parameters(), 1.0, group=group).item()]


def forget(model: nn.Module) -> None:
    """Give the norms of sequence parallelism torch's plain forward, as anybody would who writes this from memory."""
    for module in model.modules():
        if isinstance(module, SequenceParallelNorm):
            module.forward = lambda x, norm=module: nn.LayerNorm.forward(norm, x)


def drawn(ranks: Ranks, seed_of: Callable[[], int]) -> Tensor:
    """A weight (32, 32) of which each rank draws its own part."""
    size = 32 // len(ranks)

    def draw() -> Tensor:
        torch.manual_seed(seed_of())
        return torch.randn(size, 32)

    return torch.cat(ranks.run(draw))
