"""Clips gradients by their global norm, which covers the gradients of all parameters on all ranks.

Under DDP every rank has every averaged gradient, so each rank computes the global norm alone and nothing is sent. Under
tensor or pipeline parallelism and ZeRO a rank has only some of the gradients. Its parameters say how they lie on each
axis: a Placement (placement.py) says, for one axis such as tp, which ranks share the parameter and how many of them
store each entry (`copies`). |g|^p is added up over the groups of the axes, and what lies on several ranks counts once.
Adding up the squares of all ranks without this would count the weight of a norm layer N times (N = ranks).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.devices import computing_device
from helpers.parallel.shared.placement import Placement, Placements, axes_of, placements_of


@torch.no_grad()
def gradient_norm(
    gradients: Iterable[Tensor | None],
    *,
    norm_type: float = 2.0,
    group: dist.ProcessGroup | None = None,
    placements: Sequence[Placements] | None = None,
) -> Tensor:
    """Return the p-norm of all gradients, taken as one vector, as a scalar tensor. None counts as zero.

    norm_type: p, 1 or more, or math.inf for the largest absolute value.
    placements: how the parameter of each gradient lies on the ranks; one scalar is sent for each axis. Without any,
    each gradient counts as a shard: of all ranks of `group`, or of this rank alone without a group.
    Raises ValueError for a norm_type below 1 or NaN, for a group on which the parameters do not lie, and (in `axes_of`)
    where a parameter's placement on an axis is missing, or is on other ranks than that of another parameter.
    """
    if not norm_type >= 1:
        raise ValueError(f"norm_type={norm_type}: give 1 or more, or math.inf for the largest absolute value")
    gradients = list(gradients)
    placed = list(zip(gradients, placements or [{}] * len(gradients), strict=True))  # (gradient, placements by axis)
    norms = [  # whose p-th power is |g|^p / copies, from each rank that stores the gradient
        torch.linalg.vector_norm(gradient, norm_type) / _copies(by_axis) ** (1 / norm_type)
        for gradient, by_axis in placed
        if gradient is not None
    ]
    zero = torch.zeros((), device=computing_device(group))  # on the GPU for NCCL, which sends no CPU tensors
    norm = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else zero
    for axis_group in _groups(axes_of(placed), group):
        norm = _over_ranks(norm, norm_type, axis_group)
    return norm


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

    It uses the formula of torch.nn.utils.clip_grad_norm_: the factor is min(1, max_norm / (norm + 1e-6)). Call it after
    backward and before the optimizer's step, never between micro-batches. The placements of the parameters say on which
    ranks they lie; group: for shards without a placement. Raises ValueError for max_norm below 0 and as `gradient_norm`
    does, and RuntimeError for an infinite or NaN norm if error_if_nonfinite.
    """
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients, placements = [p.grad for p in parameters], [placements_of(p) for p in parameters]
    norm = gradient_norm(gradients, norm_type=norm_type, group=group, placements=placements)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(f"the gradient norm is {norm.item()}: look for an inf or NaN in the loss before clipping")
    scale_to(gradients, max_norm, norm)
    return norm


@torch.no_grad()
def scale_to(gradients: Iterable[Tensor | None], max_norm: float, norm: Tensor) -> None:
    """Scale gradients, whose global norm is `norm`, in place so that it becomes at most max_norm.

    Raises ValueError for max_norm below 0.
    """
    if max_norm < 0:
        raise ValueError(f"max_norm={max_norm}: a norm is never negative; give the largest norm to allow, such as 1.0")
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)  # 1e-6 as in torch; never larger than 1
    for gradient in gradients:
        if gradient is not None:
            gradient.mul_(factor.to(gradient.device))


def _copies(placements: Placements) -> int:
    """Return how many ranks store each entry."""
    return math.prod(placement.copies for placement in placements.values())


def _groups(axes: Sequence[Placement], group: dist.ProcessGroup | None) -> list[dist.ProcessGroup]:
    """Return the groups over which to add up, with `group` as the last.

    A rank without parameters knows no axis, so it adds up over `group` alone. The other ranks must have finished their
    axes by then. axes: one placement for each axis on which some parameter lies.
    """
    if group is None:
        return [axis.group for axis in axes]
    ranks = tuple(dist.get_process_group_ranks(group))
    if axes and ranks not in [axis.ranks for axis in axes]:
        known = ", ".join(f"{list(axis.ranks)} of {axis.axis}" for axis in axes)
        raise ValueError(
            f"got a group of the ranks {list(ranks)}, but these parameters lie on the ranks {known}: leave `group` out"
        )
    return [*(axis.group for axis in axes if axis.ranks != ranks), group]


def _over_ranks(norm: Tensor, norm_type: float, group: dist.ProcessGroup) -> Tensor:
    """Combine the norms of all ranks of a group.

    All ranks send float64, since they must agree on a dtype, and a rank without gradients does not know the others'.
    """
    is_max = norm_type == math.inf
    total = norm.double() if is_max else norm.double() ** norm_type
    dist.all_reduce(total, op=dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM, group=group)
    return (total if is_max else total ** (1 / norm_type)).to(norm.dtype)
