"""An unmodified script for CUDA and NCCL on a practice card: what says "cuda" gets the card, and reads "cuda" again.

In C++ every tensor is on card:0. Creation on "cuda" has kernels here, so it needs no wrapper and works in every thread;
what C++ would refuse earlier (`.to("cuda")`, `.cuda()`) and what is read of a device (`x.device`) is replaced by name.

    gpus        which GPU of its node a tensor is on, as the script numbers them; tensors on another one than the rest
    tensors     creation, moving, reading: torch.Tensor's and torch's names
    cuda        torch.cuda's names, torch.accelerator's, autocast
    groups      init_process_group, new_group and what asks for NCCL: the wire, with NCCL's rules
    dtensors    how DTensor asks for shapes, and for random numbers
    files       torch.load and its map_location
    missing     what no rehearsal can do: it is told by name
"""

from __future__ import annotations

import torch

_TENSORS = frozenset(dir(torch._C._VariableFunctions))  # functions that make or take tensors


def install(gpus_of_node: int, folder: str, memory: int) -> None:
    """Once per process, behind `cards.install`. folder: the ranks' own, for stores and boards. memory: bytes that the
    card says it has; what it holds at most is `cards.install`'s matter."""
    from helpers.commands.rehearse.redirect import cuda, dtensors, files, gpus, groups, missing, tensors

    gpus.begin(gpus_of_node)
    tensors.replace()
    cuda.replace(memory)
    dtensors.replace()
    files.replace()
    groups.replace(folder)
    missing.replace()
    for name, maker in vars(torch).items():  # TorchScript knows functions by their identity
        if hasattr(maker, "__wrapped__") and name in _TENSORS:
            torch.jit._builtins._register_builtin(maker, f"aten::{name}")
