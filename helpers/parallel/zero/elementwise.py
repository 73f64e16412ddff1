"""Is an optimizer elementwise? Only then may a tensor be cut anywhere and its parts be stepped on different ranks.

Elementwise: the new value of an element depends on that element's gradient and state alone. SGD, Adam, AdamW, RMSprop
and most others are. Not so: Adafactor (sums over rows and columns), Muon (orthogonalises whole matrices), LARS and LAMB
(norms of whole tensors), LBFGS (inner products over all parameters). No list can know an optimizer of your own, so it
is tried out: some steps on a small matrix, and the same on its parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor

STEPS, ROWS, COLUMNS, CUTS = 3, 4, 6, (0, 5, 13, 24)  # cuts inside rows, as shards have them


def check_elementwise(
    optimizer_class: type[torch.optim.Optimizer],
    groups: Sequence[dict],
    options: dict,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> None:
    """Raise ValueError, with the reason, if stepping on parts differs from stepping on whole tensors.

    groups: the options of each parameter group, without "params"; options: those of the optimizer. Nothing of the
    caller's is touched. Takes some milliseconds.
    """
    name = getattr(optimizer_class, "__name__", None) or repr(optimizer_class)
    if _needs_closure(optimizer_class):
        raise ValueError(_refusal(name, "its step() needs a closure, so it searches along all parameters at once"))
    whole = _final(optimizer_class, groups, options, [(0, ROWS * COLUMNS)], dtype, device, flat=False)
    try:
        parts = _final(optimizer_class, groups, options, list(zip(CUTS[:-1], CUTS[1:], strict=True)), dtype, device)
    except Exception as error:
        raise ValueError(_refusal(name, f"it does not take a part of a tensor ({error})")) from error
    if not torch.allclose(whole.double(), parts.double(), rtol=1e-3, atol=0):
        raise ValueError(_refusal(name, "a step on the parts of a matrix gave other values than on the whole"))


def _needs_closure(optimizer_class: object) -> bool:
    step = getattr(optimizer_class, "step", None)
    closure = inspect.signature(step).parameters.get("closure") if step is not None else None
    return closure is not None and closure.default is inspect.Parameter.empty


def _refusal(name: str, reason: str) -> str:
    return (
        f"{name} is not elementwise: {reason}. A shard is a range of the flat parameters and ends inside tensors, so "
        "its rank cannot know what the step needs. Take an elementwise optimizer (SGD, Adam, AdamW, RMSprop, …)"
    )


def _final(optimizer_class, groups, options, ranges, dtype, device, *, flat: bool = True) -> Tensor:
    """All values after some steps, one matrix a parameter group, each given as its parts `ranges`."""
    values = [_numbers(ROWS * COLUMNS, index, dtype, device) for index in range(len(groups))]
    params = [
        [
            (value[start:stop].clone() if flat else value.clone().view(ROWS, COLUMNS)).requires_grad_()
            for start, stop in ranges
        ]
        for value in values
    ]
    optimizer = optimizer_class(
        [{**group, "params": own} for group, own in zip(groups, params, strict=True)], **options
    )
    for step in range(STEPS):
        for index, own in enumerate(params):
            gradient = _numbers(ROWS * COLUMNS, 10 * step + index + 1, dtype, device)
            for part, (start, stop) in zip(own, ranges, strict=True):
                part.grad = gradient[start:stop].clone().view_as(part)
        optimizer.step()
    return torch.cat([part.reshape(-1) for own in params for part in own])


def _numbers(count: int, seed: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Irregular numbers between -1 and 1 that leave torch's random generator alone."""
    places = torch.arange(1, count + 1, dtype=torch.float64) * (seed + 1)
    return (torch.sin(places * 12.9898) * 43758.5453).frac().to(dtype=dtype, device=device)
