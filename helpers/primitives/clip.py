"""Clipping by the global norm: of all gradients together, on all ranks together.

Under DDP every rank holds every averaged gradient, so the norm that a rank computes alone is the global one and
nothing is sent. Where gradients are sharded, pass the group over which they are: then one scalar is all-reduced.
Under tensor parallelism some are parts and some are whole on every rank: a parameter's `num_copies` (set when a model
is cut) says how many ranks hold it, and it counts once. Adding up all ranks' squares would count a norm's N times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def gradient_norm(
    gradients: Iterable[Tensor],
    *,
    norm_type: float = 2.0,
    group: dist.ProcessGroup | None = None,
    copies: Sequence[int] | None = None,
):
    """The p-norm of all gradients as one vector: a scalar tensor. With a group: of the shards of all its ranks.

    p is norm_type, 1 or more, or math.inf for the largest absolute value. Sends one scalar if a group is given.
    copies: on how many ranks of the group each gradient is the same; None: each is a part of its own.
    Raises ValueError for norm_type below 1 or not a number.
    """
    if not norm_type >= 1:
        raise ValueError(f"norm_type={norm_type}: give 1 or more, or math.inf for the largest absolute value")
    norms = [torch.linalg.vector_norm(gradient, norm_type) for gradient in gradients]
    if copies is not None and group is not None and norm_type != math.inf:  # |g|^p / copies, once from each holder
        norms = [norm / count ** (1 / norm_type) for norm, count in zip(norms, copies, strict=True)]
    norm = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros(())
    if group is None:
        return norm
    if norm_type == math.inf:
        dist.all_reduce(norm, op=dist.ReduceOp.MAX, group=group)
        return norm
    total = norm**norm_type
    dist.all_reduce(total, group=group)
    return total ** (1 / norm_type)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Iterable[Tensor] | Tensor,
    max_norm: float,
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Scale all gradients in place so that their global norm is at most max_norm; return the norm before clipping.

    Same formula as torch.nn.utils.clip_grad_norm_: the factor is min(1, max_norm / (norm + 1e-6)). Call it after
    backward and before the optimizer's step, never between micro-batches. Raises ValueError for max_norm below 0 or for
    a group that does not fit how the parameters were cut, and RuntimeError for an infinite or NaN norm if
    error_if_nonfinite.
    """
    if max_norm < 0:
        raise ValueError(f"max_norm={max_norm}: a norm is never negative; give the largest norm to allow, such as 1.0")
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters
    parameters = [p for p in parameters if p.grad is not None]
    gradients, copies = [p.grad for p in parameters], [getattr(p, "num_copies", 1) for p in parameters]
    _check_group(max(copies, default=1), group)
    norm = gradient_norm(gradients, norm_type=norm_type, group=group, copies=copies)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(f"the gradient norm is {norm.item()}: look for an inf or NaN in the loss before clipping")
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device))
    return norm


def _check_group(copies: int, group: dist.ProcessGroup | None) -> None:
    if copies > 1 and (group is None or dist.get_world_size(group) % copies):
        given = "no group" if group is None else f"a group of {dist.get_world_size(group)}"
        raise ValueError(
            f"clip_grad_norm_ got {given}, but these parameters were cut over {copies} ranks: pass "
            "group=the group that was given to shard_tensor_parallel, or the norm misses the other ranks' parts"
        )
