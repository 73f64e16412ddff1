"""What a checkpoint weighs, and how long a cluster takes to write it."""

from __future__ import annotations

from math import inf

from helpers.predict.failures.checks import above_zero, whole
from helpers.predict.memory.states import optimizer_bytes, weight_bytes
from helpers.specs import Plan


def checkpoint_bytes(num_params: int, plan: Plan | None = None) -> float:
    """Bytes of weights and optimizer state of a whole model; gradients are not saved.

    14 bytes per parameter in mixed precision with AdamW: BLOOM's 176,247,271,424 parameters are 2.3 TB, and 329 GB
    without the optimizer, when counted as `du -h` counts: in powers of two, rounded up. BigScience 2022.
    """
    whole(num_params=num_params)
    plan = plan or Plan()
    return num_params * (weight_bytes(plan) + optimizer_bytes(plan))


def save_seconds(*, num_bytes: float, nodes: int, disk_bandwidth: float = inf, shared_bandwidth: float = inf) -> float:
    """Seconds until a checkpoint is written, each node writing its part at once; the slower of the two ways decides.

    disk_bandwidth: bytes per second that one node can write, so many nodes are faster. shared_bandwidth: bytes per
    second of the shared file system together, which more nodes do not help. ValueError where neither is given.
    """
    above_zero(num_bytes=num_bytes, disk_bandwidth=disk_bandwidth, shared_bandwidth=shared_bandwidth)
    whole(nodes=nodes)
    if disk_bandwidth == shared_bandwidth == inf:
        raise ValueError("save_seconds got no bandwidth; give disk_bandwidth, shared_bandwidth, or both, in bytes/s")
    return max(num_bytes / nodes / disk_bandwidth, num_bytes / shared_bandwidth)
