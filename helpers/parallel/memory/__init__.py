"""Saves memory for activations and optimizer states: they are recomputed, moved to the host, or never made.

    chunked_token_loss       cross entropy without the logits of all tokens                (chunked_loss.py)
    offload_activations      moves what backward will need to the host and back            (offload.py)
    OffloadedOptimizer       keeps the optimizer and its states on the host                (offload.py)
    PinnedDevices            a real GPU and its host, with asynchronous copies             (offload.py)
    Budget, OutOfBudget      a simulated GPU with a memory limit and its host; the error   (shared/virtual_devices.py)
    GPU, HOST                the numbers of the two devices of either, 0 and 1             (shared/virtual_devices.py)
    checkpoint               one function, computed again in backward                      (shared/recompute.py)
    checkpoint_sequential    a chain of layers in segments, each computed again            (shared/recompute.py)
    recompute                recomputation in plain torch, on one screen                  (recomputation.py)
    recompute_blocks         switches recomputation of a GPT's blocks on                   (shared/recompute.py)
What is in shared/ is used by other strategies too.

Begin with recomputation.py.
"""

from helpers.parallel.memory.chunked_loss import chunked_token_loss
from helpers.parallel.memory.offload import OffloadedOptimizer, PinnedDevices, offload_activations
from helpers.parallel.memory.recomputation import recompute
from helpers.parallel.shared.recompute import checkpoint, checkpoint_sequential, recompute_blocks
from helpers.parallel.shared.virtual_devices import GPU, HOST, Budget, OutOfBudget

__all__ = [
    "GPU",
    "HOST",
    "Budget",
    "OffloadedOptimizer",
    "OutOfBudget",
    "PinnedDevices",
    "checkpoint",
    "checkpoint_sequential",
    "chunked_token_loss",
    "offload_activations",
    "recompute",
    "recompute_blocks",
]
