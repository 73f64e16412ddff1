"""Implements practice cards: a simulated GPU for a rank, on any laptop.

`device="card"` behaves as `device="cuda"` would.

    devices.install("card", num_bytes)     before the first backward of a process: autograd counts devices once
    x = torch.randn(3, device="card")

A card's tensor holds its numbers in the CPU's memory, and it refuses what a GPU's tensor refuses: tensors of another
device, numpy, a CPU generator, more memory than the card has. Its results equal the CPU's to the bit.

    tensor         the tensor, and what happens to each operation
    errors         CUDA's errors; those inside a backward are raised when it ends
    kernels        what C++ asks of a device: creation, copies, SyncBatchNorm, autocast
    memory         bytes by storage, and the error of a full card
    module         torch.card, with the names of torch.cuda
    torch_patches  pinned memory and a card's generators
    streams        streams and events: what comes after what, by vector clocks
    memory_uses    which bytes are used on which stream; copies that do not block
    races          memory that is still in use when another stream touches it

It uses torch's own hook for devices in Python (torch.utils.backend_registration, since 2.10, experimental). A
process has one card, number 0, as a rank has one GPU. Everything is done when a call returns, so streams and events
wait for nothing, but what would have been a race on a GPU is found. Sparse tensors, CUDA graphs and kernels written by
hand do not work here.

It exists so that code for GPUs, and its mistakes, can be tried on a laptop. Begin with tensor.py.
"""

from __future__ import annotations

import sys

from helpers import devices
from helpers.devices import CARD


def install(num_bytes: int) -> None:
    """Give this process a card of `num_bytes`; a second call changes its size.

    Raises ValueError for fewer than 1 byte, RuntimeError where another device of this kind is registered, torch has no
    hook for it, or a backward ran before.
    """
    if num_bytes < 1:
        raise ValueError(f"a card of {num_bytes} bytes holds nothing: give 1 or more; 64 MB is 64_000_000")
    from helpers.devices.cards import errors, kernels, module, tensor, torch_patches

    if not module.is_registered():
        module.register()
        kernels.register()
        kernels.register_batch_norm()
        errors.install_guards()
        torch_patches.patch()
        _try_backward()
    tensor.memory.capacity = num_bytes


def is_card(value: object) -> bool:
    """Whether this is a tensor on a practice card; where nobody installed one, nothing is.

    The module is looked up and not imported, because to import it is to register the device with torch.
    """
    tensors = sys.modules.get("helpers.devices.cards.tensor")
    return tensors is not None and isinstance(value, tensors.CardTensor)


def holds(tensor: object) -> bool:
    """Whether a tensor is on the card.

    A functional collective (of torch.ops._c10d_functional) gives its process group the CPU tensor inside a card's
    tensor, or a copy of it. That counts as being on the card, too. Nothing in that tensor shows it, so every
    tensor counts while this thread is in such a call.
    """
    if is_card(tensor):
        return True
    tensors = sys.modules.get("helpers.devices.cards.tensor")
    return tensors is not None and tensors.is_in_functional()


def new_run() -> None:
    """A new task of this process begins: a race that was found before is reported again."""
    races = sys.modules.get("helpers.devices.cards.races")
    if races is not None:
        races.new_run()


def _try_backward() -> None:
    """Run one backward. Raises RuntimeError where autograd counted the devices before this one existed."""
    import torch

    try:
        torch.ones((), device=CARD, requires_grad=True).backward()
    except RuntimeError as error:
        raise RuntimeError(
            "this process ran a backward before its practice card was installed, and autograd counts devices once: "
            'start with the card, as Ranks(4, device="card") does'
        ) from error


devices.register(CARD, sys.modules[__name__])  # helpers.devices calls the functions of this module
