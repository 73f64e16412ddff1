"""Clipping by the global norm: of all gradients together, on all ranks together.

Under DDP every rank holds every averaged gradient, so the norm that a rank computes alone is the global one and
nothing is sent. Under tensor or pipeline parallelism and ZeRO a rank holds some of them. Its parameters say how they
lie on each axis (placement.py): powers are added up over the axes' groups, and what lies on several ranks counts once.
Adding up all ranks' squares as they are would count a norm's weight N times.
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
    """The p-norm of all gradients as one vector: a scalar tensor. None counts as zero.

    p is norm_type, 1 or more, or math.inf for the largest absolute value.
    placements: how the parameter of each lies on the ranks; one scalar is sent for each axis. Without any, each
    gradient is a part of its own: of all ranks of `group`, or of this rank alone. Raises ValueError for norm_type below
    1 or not a number, for a group on which the parameters do not lie, and for what `axes_of` cannot count.
    """
    if not norm_type >= 1:
        raise ValueError(f"norm_type={norm_type}: give 1 or more, or math.inf for the largest absolute value")
    gradients = list(gradients)
    placed = list(zip(gradients, placements or [{}] * len(gradients), strict=True))
    norms = [  # |g|^p / copies, once from each holder
        torch.linalg.vector_norm(gradient, norm_type) / _copies(axes) ** (1 / norm_type)
        for gradient, axes in placed
        if gradient is not None
    ]
    nothing = torch.zeros((), device=computing_device(group))  # NCCL carries none of the CPU's
    norm = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else nothing
    for axis in _groups(axes_of(placed), group):
        norm = _over_ranks(norm, norm_type, axis)
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

    Same formula as torch.nn.utils.clip_grad_norm_: the factor is min(1, max_norm / (norm + 1e-6)). Call it after
    backward and before the optimizer's step, never between micro-batches. Over which ranks the parameters lie, they say
    themselves; group: for parts of which nobody has said it. Raises ValueError for max_norm below 0 and as
    `gradient_norm` does, and RuntimeError for an infinite or NaN norm if error_if_nonfinite.
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
    """Scale gradients of this global norm in place so that it is at most max_norm. ValueError for max_norm below 0."""
    if max_norm < 0:
        raise ValueError(f"max_norm={max_norm}: a norm is never negative; give the largest norm to allow, such as 1.0")
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        if gradient is not None:
            gradient.mul_(factor.to(gradient.device))


def _copies(placements: Placements) -> int:
    """On how many ranks each entry lies."""
    return math.prod(placement.copies for placement in placements.values())


def _groups(axes: Sequence[Placement], group: dist.ProcessGroup | None) -> list[dist.ProcessGroup]:
    """Over which groups to add up; the one that was given comes last, for a rank without parameters knows no other."""
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
    """The norm of what all ranks of a group hold, from that of each. In float64, as a rank without gradients has it."""
    is_max = norm_type == math.inf
    total = norm.double() if is_max else norm.double() ** norm_type
    dist.all_reduce(total, op=dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM, group=group)
    return (total if is_max else total ** (1 / norm_type)).to(norm.dtype)
