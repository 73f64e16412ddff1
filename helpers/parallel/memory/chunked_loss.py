"""Computes cross entropy for some tokens at a time, so that the logits (B, T, V) never exist.

Legend: n = tokens, c = tokens in a chunk, h = hidden, V = vocabulary.

    plain     stores logits n V, their log-probabilities n V, and in backward their gradient n V: often a step's peak
    chunked   stores two tensors of c V at a time; and for backward the gradients of hidden, n h, and of the weight, V h

The loss is the last operation of a model, so each chunk can compute its gradients in the forward pass. It needs three
matrix products, as many as the plain loss, and computes nothing twice. Liger-Kernel does the same (Hsu et al. 2024,
"Liger Kernel: Efficient Triton Kernels for LLM Training", FusedLinearCrossEntropy).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100  # a target that does not count, as in torch's cross entropy


def chunked_token_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, chunk_tokens: int = 256, reduction: str = "mean"
) -> Tensor:
    """Return `token_loss(F.linear(hidden, weight), targets, reduction)`, in nats, `chunk_tokens` tokens at a time.

    hidden (B, T, h): the head's input, `model.features(tokens)`. weight (V, h): the head's, which may be tied.
    targets (B, T) int64; a target of -100 does not count. 16-bit logits are widened to float32 before the softmax.
    For a 16-bit model, gradients are stored until backward in float32 and as sums over tokens, so that neither the
    division by the number of tokens nor a loss scale makes them vanish.
    Raises ValueError for shapes that do not fit, a chunk below 1 or a reduction other than "mean" and "sum".
    """
    _check(hidden, weight, targets, chunk_tokens, reduction)
    total = _ChunkedLoss.apply(hidden.flatten(0, -2), weight, targets.flatten(), chunk_tokens)
    return total if reduction == "sum" else total / (targets != IGNORED).sum()


class _ChunkedLoss(torch.autograd.Function):
    """The sum of the losses of hidden (n, h), weight (V, h) and targets (n,)."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor, chunk_tokens: int) -> Tensor:
        ctx.dtypes = hidden.dtype, weight.dtype
        wanted = zip((hidden, weight), ctx.needs_input_grad[:2], strict=True)
        gradients = [torch.zeros_like(x, dtype=_wide(x.dtype)) if needed else None for x, needed in wanted]
        total = hidden.new_zeros((), dtype=_wide(hidden.dtype))
        for start in range(0, len(hidden), chunk_tokens):
            rows = slice(start, start + chunk_tokens)
            total += _chunk(hidden[rows], weight, targets[rows], _rows_of(gradients, rows))
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        scaled = [
            None if saved is None else (saved * gradient).to(dtype)
            for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *scaled, None, None


def _rows_of(gradients: list[Tensor | None], rows: slice) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients to which a chunk adds: its rows of hidden's, and all of the weight's; None stays None."""
    by_hidden, by_weight = gradients
    return None if by_hidden is None else by_hidden[rows], by_weight


def _chunk(hidden: Tensor, weight: Tensor, targets: Tensor, gradients: tuple[Tensor | None, Tensor | None]) -> Tensor:
    """Return the sum of the losses of one chunk, and add its gradients.

    The gradient of the loss by the logits is softmax, minus 1 at the target.
    """
    logits = F.linear(hidden, weight)
    probabilities = F.log_softmax(logits, dim=-1, dtype=_wide(logits.dtype))  # (c, V), logarithms until exp_ below
    counted = targets != IGNORED
    column = targets.where(counted, 0).unsqueeze(-1)  # (c, 1)
    loss = -probabilities.gather(-1, column).squeeze(-1).where(counted, 0).sum()
    probabilities.exp_().scatter_add_(-1, column, -torch.ones_like(column, dtype=probabilities.dtype))
    by_logits = probabilities.masked_fill_(~counted.unsqueeze(-1), 0).to(logits.dtype)
    by_hidden, by_weight = gradients
    if by_hidden is not None:
        by_hidden += by_logits @ weight  # (c, h)
    if by_weight is not None:
        by_weight += by_logits.T @ hidden  # (V, h)
    return loss


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums: float32, or the dtype itself if it is wider."""
    return torch.promote_types(dtype, torch.float32)


def _check(hidden: Tensor, weight: Tensor, targets: Tensor, chunk_tokens: int, reduction: str) -> None:
    if hidden.shape[:-1] != targets.shape or hidden.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"chunked_token_loss got hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and targets "
            f"{tuple(targets.shape)}: expected (B, T, h), (V, h) and (B, T)"
        )
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens={chunk_tokens}: expected 1 or more; 256 keeps 256 rows of logits at a time")
    if reduction not in ("mean", "sum"):
        raise ValueError(
            f"reduction={reduction!r}: known are 'mean' and 'sum'. A loss for each token needs gradients "
            "that are not known in the forward pass; use token_loss for that"
        )
