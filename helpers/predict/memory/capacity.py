"""Divides bytes and batches over GPUs: how many GPUs hold so many bytes, and how large a rank's micro-batch is.

These are the first divisions of every capacity plan; interview cards use them.
"""

from __future__ import annotations

from math import ceil


def gpus_needed(num_bytes: float, gpu_memory: float, *, usable: float = 1.0, per_node: int = 1) -> int:
    """The number of GPUs of `gpu_memory` bytes that hold `num_bytes` together, rounded up to whole nodes.

    usable: the share of a GPU's memory that may be used; the rest is for the CUDA context, NCCL's buffers and
    fragmentation. It leaves nothing for activations, so include their bytes. per_node: GPUs of a node.
    """
    if not 0 < usable <= 1:
        raise ValueError(f"usable is {usable!r}, but it is a share of the memory: above 0, at most 1")
    if not num_bytes >= 0 or not gpu_memory > 0 or per_node < 1:
        raise ValueError(f"cannot spread {num_bytes!r} bytes over GPUs of {gpu_memory!r} bytes, {per_node!r} a node")
    gpus = max(1, ceil(num_bytes / (usable * gpu_memory)))
    return ceil(gpus / per_node) * per_node


def together(gpu_memory: float, gpus: int, *, usable: float = 1.0) -> float:
    """Usable bytes of `gpus` GPUs of `gpu_memory` bytes each.

    Pass what the data sheet says or what the device reports (`helpers.specs.GPU.reported`), and say which.
    """
    if not 0 < usable <= 1 or not gpu_memory > 0 or gpus < 1:
        raise ValueError(f"cannot add up {gpus!r} GPUs of {gpu_memory!r} bytes, of which {usable!r} is usable")
    return usable * gpu_memory * gpus


def left_over(num_bytes: float, gpu_memory: float, gpus: int) -> float:
    """Bytes that remain free on all `gpus` GPUs together beside `num_bytes`; negative where these do not fit."""
    return together(gpu_memory, gpus) - num_bytes


def share(part: float, whole: float) -> float:
    """`part` over `whole`, from 0 to 1, such as trained parameters over all parameters. Both in the same unit."""
    if not 0 <= part <= whole or not whole > 0:
        raise ValueError(f"share: {part!r} of {whole!r} is none; expected a part from 0 up to the whole, above 0")
    return part / whole


def local_batch(global_batch: int, num_ranks: int, *, accumulate: int = 1) -> int:
    """Samples of a rank's micro-batch, such that ranks and accumulated micro-batches together make `global_batch`.

    Raises ValueError where it does not divide, because the parts are then unequal and averages must be weighted.
    """
    parts = num_ranks * accumulate
    if parts < 1 or global_batch < 1 or global_batch % parts:
        raise ValueError(
            f"local_batch: {num_ranks!r} ranks times {accumulate!r} accumulated do not divide a global batch of "
            f"{global_batch!r}; change one, or weight unequal parts"
        )
    return global_batch // parts
