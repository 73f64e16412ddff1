"""The operations and bytes of one training step, before anything runs. The answer has the type of a measured log.

Payload is what a rank hands to torch.distributed; `CommLog.sent_bytes()` derives what a ring then sends. Without a
link every event starts and ends at 0 s; with one, the operations follow each other on it, with nothing hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.parallel.shared.bucket_rule import MIB, split_into_buckets
from helpers.predict.traffic.events import Traffic, checked_sizes
from helpers.records import CommLog
from helpers.specs import Link


def ddp_traffic(
    parameters: int | Sequence[int],
    *,
    world_size: int,
    dtype_bytes: int = 4,
    bucket_bytes: float = 25 * MIB,
    first_bucket_bytes: float = 1 * MIB,
    link: Link | None = None,
    rank: int = 0,
) -> CommLog:
    """One all_reduce a bucket: the traffic of one DDP step on one rank.

    parameters: elements of each parameter in the order of `model.parameters()`; their gradients are ready in reverse.
    A single number stands for that many elements in small pieces, which fill each bucket to the brim.
    bucket_bytes, first_bucket_bytes: torch's bucket_cap_mb counts MiB; 1 gives a message per parameter, math.inf one in
    all. Rule: `split_into_buckets`. Raises ValueError.
    """
    if isinstance(parameters, int):
        buckets = _brimful(parameters, dtype_bytes, min(first_bucket_bytes, bucket_bytes), bucket_bytes)
        return _all_reduces(buckets, world_size, dtype_bytes, link, rank)
    ready = checked_sizes(parameters)[::-1]
    in_bytes = [size * dtype_bytes for size in ready]
    groups = split_into_buckets(in_bytes, bucket_cap=bucket_bytes, first_bucket_cap=first_bucket_bytes)
    return _all_reduces([sum(ready[i] for i in group) for group in groups], world_size, dtype_bytes, link, rank)


def data_parallel_traffic(
    parameters: int, *, num_devices: int, input_bytes: int, output_bytes: int, dtype_bytes: int = 4
) -> CommLog:
    """What `nn.DataParallel` moves in one step, seen from its master device.

    Scatter of the batch, broadcast of all parameters (every step), gather of the outputs, scatter of their gradients,
    reduce of all parameter gradients. input_bytes, output_bytes: of the whole batch; they need no share for the master.
    The log's payload is what the master hands in or gets; `master_link_bytes` is what crosses its link.
    """
    weights = parameters * dtype_bytes
    steps = [("scatter", input_bytes), ("broadcast", weights), ("gather", output_bytes)]
    steps += [("scatter", output_bytes), ("reduce", weights)]
    traffic = Traffic(num_devices, dtype_bytes=1)
    for op, num_bytes in steps:
        traffic.add(op, (num_bytes,))
    return traffic.log


def master_link_bytes(log: CommLog) -> int:
    """Bytes that leave or enter the master's link when it serves every other device itself, one after the other.

    Broadcast and reduce of P bytes cost P for each of the N - 1 others, scatter and gather (N-1)/N of the whole.
    """
    total = 0.0
    for event in log.events:
        others = len(event.group_ranks) - 1
        whole = event.op in ("broadcast", "reduce")
        total += event.payload_bytes * (others if whole else others / (others + 1))
    return round(total)


def _brimful(parameters: int, dtype_bytes: int, first_cap: float, cap: float) -> list[int]:
    checked_sizes([parameters])
    if min(first_cap, cap) < dtype_bytes:
        raise ValueError(f"a bucket of {min(first_cap, cap)} bytes holds no element of {dtype_bytes} bytes; raise it")
    buckets, left = [], parameters
    while left > 0:
        room = int((cap if buckets else first_cap) // dtype_bytes)
        buckets.append(min(room, left))
        left -= buckets[-1]
    return buckets


def _all_reduces(sizes: Sequence[int], world_size: int, dtype_bytes: int, link: Link | None, rank: int) -> CommLog:
    traffic = Traffic(world_size, dtype_bytes=dtype_bytes, link=link, rank=rank)
    for size in sizes:
        traffic.add("all_reduce", (size,))
    return traffic.log
