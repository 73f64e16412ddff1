"""Practice cards: a GPU of practice for a rank, on any laptop. `device="card"` behaves as `device="cuda"` would.

    cards.install(num_bytes)         before the first backward of a process: autograd counts devices once
    x = torch.randn(3, device="card")

A card's tensor holds its numbers in the CPU's memory and refuses what a GPU's refuses: tensors of another device,
numpy, a CPU generator, more memory than the card has. What it computes is equal to the CPU's to the bit.

    tensor      the tensor, and the way of each operation    memory    bytes by storage, and the error when it is full
    checks      CUDA's errors for what does not fit          late      errors inside backward, raised when it ends
    kernels     what C++ asks of a device; autocast          pinned    pinned memory and a card's generators
    batch_norm  SyncBatchNorm, which torch has for GPUs alone
    module      torch.card: the names of torch.cuda      streams   who would wait for whom, by clocks
    races    races: memory that is still in use       underway  copies that do not block, seen from the CPU

It stands on torch's own hook for devices in Python (torch.utils.backend_registration, since 2.10, experimental). A
process has one card, number 0, as a rank has one GPU. All is done when a call returns, so streams and events wait for
nothing, but what would have been a race is found. Not here: sparse tensors, CUDA graphs, kernels of one's own.
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
        _try()
    tensor.memory.capacity = num_bytes


def is_card(value: object) -> bool:
    """Whether this is a tensor on a practice card; where nobody installed one, nothing is."""
    tensors = sys.modules.get("helpers.devices.cards.tensor")
    return tensors is not None and isinstance(value, tensors.CardTensor)


def holds(tensor: object) -> bool:
    """Whether a tensor is on the card; also the CPU tensor inside, which a functional collective gives to its group,
    or the copy of it that this collective has made (such a one is known by who called)."""
    if is_card(tensor):
        return True
    tensors = sys.modules.get("helpers.devices.cards.tensor")
    return tensors is not None and tensors.is_in_functional()


def new_run() -> None:
    """A new task of this process: a race that was found before is told again."""
    races = sys.modules.get("helpers.devices.cards.races")
    if races is not None:
        races.new_run()


def _try() -> None:
    """One backward, which fails where autograd counted its devices before this one came."""
    import torch

    try:
        torch.ones((), device=CARD, requires_grad=True).backward()
    except RuntimeError as error:
        raise RuntimeError(
            "this process ran a backward before its practice card was installed, and autograd counts devices once: "
            'start with the card, as Ranks(4, device="card") does'
        ) from error


devices.register(CARD, sys.modules[__name__])
