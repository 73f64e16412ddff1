"""What CUDA refuses, in CUDA's words with the card's name."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from helpers.devices.cards.late import complain

aten = torch.ops.aten
CROSSING = {  # may see two devices
    aten._to_copy.default,
    aten.copy_.default,
    aten._has_compatible_shallow_copy_type.default,
}
JOINING = {aten.cat.default, aten.stack.default}  # refuse even a number on the CPU
ON_THE_CPU = ("lengths", "input_lengths", "target_lengths", "batch_sizes")  # of sequences: for the CPU's loops
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
NO_NUMPY = "can't convert card:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."


def check_index(device: torch.device) -> torch.device:
    """Raises RuntimeError for another card than number 0: that one is another rank's."""
    if device.type == "card" and device.index:
        raise RuntimeError(
            f"card error: invalid device ordinal: card:{device.index} was asked for, and a rank has one card, card:0"
        )
    return device


def check_together(func, args: Sequence, kwargs: dict, on_card: type) -> None:
    """Raises RuntimeError for an operation that got tensors of the card and of the CPU, unless CUDA lets it pass."""
    if func in CROSSING:
        return
    if func in INDEXING:
        if not isinstance(args[0], on_card):
            where = "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
            return complain(RuntimeError(where))
        args = (args[0], (), *args[2:])  # indices on the CPU are let in
    names = [argument.name for argument in func._schema.arguments]
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        for leaf in tree_iter(value):
            if not isinstance(leaf, Tensor) or isinstance(leaf, on_card) or name in ON_THE_CPU:
                continue
            if leaf.dim() or func in JOINING:
                return complain(RuntimeError(_two_devices(func, name, leaf.device)))


def _two_devices(func, name: str, device: torch.device) -> str:
    expected = "Expected all tensors to be on the same device, but"
    if torch.Tag.pointwise in func.tags:
        return f"{expected} found at least two devices, card:0 and {device}!"
    method = func._schema.name.partition("::")[2]
    return (
        f"{expected} got {name} is on {device}, different from other tensors on card:0 "
        f"(when checking argument in method wrapper_card_{method})"
    )
