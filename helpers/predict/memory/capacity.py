"""The first divisions of every capacity plan: how many GPUs hold so many bytes, and what share of a whole a part is."""

from __future__ import annotations

from math import ceil


def gpus_needed(num_bytes: float, gpu_memory: float, *, usable: float = 1.0, per_node: int = 1) -> int:
    """GPUs of `gpu_memory` bytes each that hold `num_bytes` together, rounded up to whole nodes of `per_node`.

    usable: the share of a GPU's memory that may be taken; what is left is for the CUDA context, NCCL's buffers and
    fragmentation. Nothing is left for activations: hand in their bytes too.
    """
    if not 0 < usable <= 1:
        raise ValueError(f"usable is {usable!r}, but it is a share of the memory: above 0, at most 1")
    if not num_bytes >= 0 or not gpu_memory > 0 or per_node < 1:
        raise ValueError(f"cannot spread {num_bytes!r} bytes over GPUs of {gpu_memory!r} bytes, {per_node!r} a node")
    gpus = max(1, ceil(num_bytes / (usable * gpu_memory)))
    return ceil(gpus / per_node) * per_node


def together(gpu_memory: float, gpus: int, *, usable: float = 1.0) -> float:
    """Bytes of `gpus` GPUs of `gpu_memory` bytes each, as far as they are usable.

    Hand in what the data sheet says or what the device reports (`helpers.specs.GPU.reported`), and say which.
    """
    if not 0 < usable <= 1 or not gpu_memory > 0 or gpus < 1:
        raise ValueError(f"cannot add up {gpus!r} GPUs of {gpu_memory!r} bytes, of which {usable!r} is usable")
    return usable * gpu_memory * gpus


def left_over(num_bytes: float, gpu_memory: float, gpus: int) -> float:
    """Bytes that `gpus` GPUs have beside `num_bytes`, all together; below 0 where these do not fit."""
    return together(gpu_memory, gpus) - num_bytes


def share(part: float, whole: float) -> float:
    """`part` over `whole`, a share of 1: trained parameters over all of them, for example. Both in the same unit."""
    if not 0 <= part <= whole or not whole > 0:
        raise ValueError(f"share: {part!r} of {whole!r} is none; expected a part from 0 up to the whole, above 0")
    return part / whole


def local_batch(global_batch: int, num_ranks: int, *, accumulate: int = 1) -> int:
    """Samples of a rank's micro-batch, so that ranks and accumulation together make `global_batch`.

    Raises ValueError where it does not divide: then parts are unequal, and averages must be weighted.
    """
    parts = num_ranks * accumulate
    if parts < 1 or global_batch < 1 or global_batch % parts:
        raise ValueError(
            f"local_batch: {num_ranks!r} ranks times {accumulate!r} accumulated do not divide a global batch of "
            f"{global_batch!r}; change one, or weight unequal parts"
        )
    return global_batch // parts
