"""Provides SyncBatchNorm: batch normalisation with the statistics of the global batch, also on CPUs.

torch.nn.SyncBatchNorm refuses CPU tensors, so this one is written by hand.
Legend: B = this rank's batch, C = channels, xhat = (x - mean) / std.
Forward all-reduces 2C + 1 numbers (sum, sum of squares, count), and backward 2C numbers.
Formulas: Ioffe and Szegedy 2015, algorithm 1 and the derivatives after it, with every sum over all ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def _channel_sum(x: Tensor) -> Tensor:
    """Sum over all dimensions but the channels', in float64."""
    return x.sum([d for d in range(x.dim()) if d != 1], dtype=torch.float64)  # (C,)


def _as_channels(values: Tensor, like: Tensor) -> Tensor:
    """Return one value per channel in a shape that can be multiplied with `like`, in its dtype."""
    return values.to(like.dtype).view(1, -1, *[1] * (like.dim() - 2))  # (1, C, 1, ...)


class _Normalise(torch.autograd.Function):
    """Maps x (B, C, ...) to xhat, with the statistics of all ranks."""

    @staticmethod
    def forward(ctx, x: Tensor, eps: float, group: dist.ProcessGroup | None):
        count = x.new_tensor([x.numel() / max(x.shape[1], 1)], dtype=torch.float64)  # values per channel on this rank
        # float64: the difference of two large sums would lose the variance in float32
        totals = torch.cat([_channel_sum(x), _channel_sum(x.double().square()), count])  # (2C + 1,)
        dist.all_reduce(totals, group=group)
        count = totals[-1]
        mean, mean_square = (totals[:-1] / count).chunk(2)
        variance = (mean_square - mean.square()).clamp_(min=0)  # rounding could make it negative
        inverse_std = (variance + eps).rsqrt()
        xhat = (x - _as_channels(mean, x)) * _as_channels(inverse_std, x)
        ctx.save_for_backward(xhat, inverse_std, count)
        ctx.group = group
        ctx.mark_non_differentiable(mean, variance, count)
        return xhat, mean, variance, count

    @staticmethod
    def backward(ctx, grad: Tensor, *unused):
        xhat, inverse_std, count = ctx.saved_tensors
        totals = torch.cat([_channel_sum(grad), _channel_sum(grad * xhat)])  # (2C,)
        dist.all_reduce(totals, group=ctx.group)
        mean_grad, mean_grad_xhat = (_as_channels(part, grad) for part in (totals / count).chunk(2))
        return (grad - mean_grad - xhat * mean_grad_xhat) * _as_channels(inverse_std, grad), None, None


class SyncBatchNorm(_BatchNorm):
    """BatchNorm1d, 2d or 3d whose mean and variance are those of the global batch. Input and output: (B, C, ...).

    Ranks may have batches of different sizes, even an empty one, because the count is summed as well. In eval mode it
    sends nothing. Every rank must run the same number of training forwards, or the others wait. Raises ValueError for
    an input without a channel dimension of num_features, and for a global batch of one value per channel.
    """

    def __init__(self, num_features: int, *args, group: dist.ProcessGroup | None = None, **kwargs):
        super().__init__(num_features, *args, **kwargs)
        self.group = group

    @classmethod
    def convert(cls, module: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
        """Replace every BatchNorm in `module` by this one, with the same parameters and running statistics."""
        for name, child in module.named_children():
            setattr(module, name, cls.convert(child, group))
        if not isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            return module
        settings = module.eps, module.momentum, module.affine, module.track_running_stats
        synced = cls(module.num_features, *settings, group=group).train(module.training)
        synced._parameters, synced._buffers = module._parameters, module._buffers  # shared, not copied
        return synced

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        if not self.training and self.running_mean is not None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        xhat, mean, variance, count = _Normalise.apply(x, self.eps, self.group)
        if count <= 1:
            raise ValueError("SyncBatchNorm saw one value a channel on all ranks together: train with a larger batch")
        if self.training and self.track_running_stats:
            self._update_running(mean, variance * count / (count - 1))  # the unbiased variance, as torch keeps it
        if self.weight is None:
            return xhat
        return xhat * _as_channels(self.weight, x) + _as_channels(self.bias, x)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor) -> None:
        self.num_batches_tracked += 1
        # without momentum, torch averages all batches so far
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm({self.num_features}) got an input of shape {tuple(x.shape)}: "
                f"expected (batch, {self.num_features}, ...)"
            )
