"""Gives a script for CUDA and NCCL the practice card wherever it says "cuda", and lets it read "cuda" again.

The practice card is a simulated GPU, a device of torch with the name "card" (helpers/devices/cards). In C++ every
tensor of a script is on card:0. An operation that makes a tensor on "cuda" is dispatched to kernels that are registered
here, so it needs no wrapper and works in every thread. A call that C++ would refuse before that (`.to("cuda")`,
`.cuda()`), or that reads a device (`x.device`), is replaced in torch under its name. Modules:

    gpus        on which GPU of its node a tensor is, as the script numbers them
    tensors     torch's functions that make, move or load a tensor, what a tensor says of its device, and DTensor
    cuda        torch.cuda's names, torch.accelerator's, autocast
    groups      process groups that ask for NCCL get the wire, this course's backend over gloo, with NCCL's rules
    unsupported what no rehearsal can try is replaced, and the report names it

silent_data, silent_training and silent_gradients change nothing for the script. They watch for mistakes that raise no
error.

Begin with cuda.py.
"""

from __future__ import annotations

from typing import Any

import torch

from helpers.devices.call_site import call_site, main_stack
from helpers.ranks.board.sites import is_engine, is_library, is_package

_TENSORS = frozenset(dir(torch._C._VariableFunctions))  # functions that make or take tensors


def install(gpus_of_node: int, folder: str, memory: int) -> None:
    """Replace torch's functions in this process, once, after the card was installed.

    gpus_of_node: how many GPUs the script sees. folder: of these ranks alone, for files that they share.
    memory: bytes that the card says it has. It may hold less, if this machine has less.
    """
    from helpers.commands.rehearse.redirect import cuda, gpus, groups, tensors, unsupported

    gpus.begin(gpus_of_node)
    tensors.replace()
    cuda.replace(memory)
    tensors.replace_dtensor()
    tensors.replace_load()
    groups.replace(folder)
    unsupported.replace(folder)
    # TorchScript knows functions by identity, so it must learn the new ones. These have the `__wrapped__` that
    # functools.wraps sets.
    for name, maker in vars(torch).items():
        if hasattr(maker, "__wrapped__") and name in _TENSORS:
            torch.jit._builtins._register_builtin(maker, f"aten::{name}")


def watch() -> None:
    """Watch for mistakes of the script that raise no error, once, after `install`."""
    from helpers.commands.rehearse.redirect import silent_data, silent_gradients, silent_training

    silent_data.watch()
    silent_training.watch()
    silent_gradients.watch()


def note_at_the_end() -> None:
    """Note what such mistakes have left, after a script that ended without an error."""
    from helpers.commands.rehearse.redirect import gpus, silent_data, silent_training

    gpus.note_elsewhere()
    silent_data.note_batches()
    silent_training.note_at_the_end()


def where() -> dict[str, Any]:
    """The line of the script that makes this call, for a note, and the calls of the script that led to it."""
    own = [one for one in main_stack() if not (is_library(one[0]) or is_engine(one[0]) or is_package(one[0]))]
    return {"site": call_site(), "chain": own}
