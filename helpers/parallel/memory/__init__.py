"""Saves memory for activations and optimizer states: they are recomputed, moved to the host, or never made.

offload.py        activations and the optimizer on the host, simulated or with a real GPU and pinned memory
chunked_loss.py   cross entropy without the logits of all tokens
Recomputation is in shared/recompute.py, because pipelines use it too.
"""

from helpers.parallel.memory.chunked_loss import chunked_token_loss
from helpers.parallel.memory.offload import OffloadedOptimizer, PinnedDevices, offload_activations
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
    "recompute_blocks",
]
