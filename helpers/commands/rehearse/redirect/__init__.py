"""Gives a script for CUDA and NCCL the practice card wherever it says "cuda", and lets it read "cuda" again.

In C++ every tensor is on card:0. Creation on "cuda" has kernels here, so it needs no wrapper and works in every thread.
What C++ would refuse earlier (`.to("cuda")`, `.cuda()`) and what reads a device (`x.device`) is replaced by name.

    gpus        on which GPU of its node a tensor is, as the script numbers them
    tensors     tensors are made, moved, loaded and asked for their device, with torch's names; DTensor
    cuda        torch.cuda's names, torch.accelerator's, autocast
    groups      init_process_group, new_group and what asks for NCCL get the wire, with NCCL's rules
    unsupported what no rehearsal can do is named in the report
"""

from __future__ import annotations

import torch

_TENSORS = frozenset(dir(torch._C._VariableFunctions))  # functions that make or take tensors


def install(gpus_of_node: int, folder: str, memory: int) -> None:
    """Replace torch's functions in this process, once, after `cards.install`.

    folder: a folder of these ranks alone, for stores and boards. memory: bytes that the card says it has; how much it
    can really hold was said to `cards.install`.
    """
    from helpers.commands.rehearse.redirect import cuda, gpus, groups, tensors, unsupported

    gpus.begin(gpus_of_node)
    tensors.replace()
    cuda.replace(memory)
    tensors.replace_dtensor()
    tensors.replace_load()
    groups.replace(folder)
    unsupported.replace()
    for name, maker in vars(torch).items():  # TorchScript knows functions by their identity
        if hasattr(maker, "__wrapped__") and name in _TENSORS:
            torch.jit._builtins._register_builtin(maker, f"aten::{name}")
