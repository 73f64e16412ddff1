"""SyncBatchNorm's five operations, which torch has for GPUs alone: the formulas, on the CPU tensors inside."""

from __future__ import annotations

import torch
from torch import Tensor

from helpers.devices.cards.tensor import _ODD

aten = torch.ops.aten


def register() -> None:
    for op, formula in (
        (aten.batch_norm_stats.default, _stats),
        (aten.batch_norm_gather_stats_with_counts.default, _gather_stats),
        (aten.batch_norm_elemt.default, _normalized),
        (aten.batch_norm_backward_reduce.default, _reduced),
        (aten.batch_norm_backward_elemt.default, _backward),
    ):
        _ODD[op] = _on_cards(formula)


def _on_cards(formula):
    return lambda inside, cards: formula(*inside)


def _rows(x: Tensor) -> Tensor:
    """(B, C, ...) -> (C, B ...)"""
    return x.transpose(0, 1).flatten(1)


def _per_channel(value: Tensor | None, x: Tensor) -> Tensor | int:
    """(C,) -> (1, C, 1, ...)"""
    return 1 if value is None else value.view(1, -1, *[1] * (x.dim() - 2))


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows = _rows(x).float() if x.dtype in (torch.float16, torch.bfloat16) else _rows(x)
    return rows.mean(1), (rows.var(1, correction=0) + eps).rsqrt()


def _gather_stats(x, means, invstds, running_mean, running_var, momentum, eps, counts) -> tuple[Tensor, Tensor]:
    counts, total = counts.view(-1, 1), counts.sum()  # (ranks, 1)
    mean = (counts * means).sum(0) / total
    var = (counts * (invstds**-2 - eps + (means - mean) ** 2)).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        running_var.lerp_((var * total / (total - 1)).to(running_var.dtype), momentum)
    return mean, (var + eps).rsqrt()


def _normalized(x, weight, bias, mean, invstd, eps) -> Tensor:
    out = (x - _per_channel(mean, x)) * _per_channel(invstd, x) * _per_channel(weight, x)
    return (out if bias is None else out + _per_channel(bias, x)).to(x.dtype)


def _reduced(dy, x, mean, invstd, weight, *wanted) -> tuple[Tensor, ...]:
    sum_dy = _rows(dy).to(mean.dtype).sum(1)
    sum_dy_xmu = _rows(dy * (x - _per_channel(mean, x))).to(mean.dtype).sum(1)
    like = mean.dtype if weight is None else weight.dtype
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(like), sum_dy.to(like)


def _backward(dy, x, mean, invstd, weight, sum_dy, sum_dy_xmu, counts) -> Tensor:
    total = counts.sum()
    centred = (x - _per_channel(mean, x)) * _per_channel(invstd**2 * sum_dy_xmu / total, x)
    scale = _per_channel(invstd if weight is None else invstd * weight, x)
    return ((dy - _per_channel(sum_dy / total, x) - centred) * scale).to(x.dtype)
