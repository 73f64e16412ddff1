"""The operations and bytes of one training step, before anything runs. The answer has the type of a measured log.

Payload is what a rank hands to torch.distributed; `CommLog.sent_bytes()` derives what a ring then sends. Without a
link every event starts and ends at 0 s; with one, the operations follow each other on it, with nothing hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.costs import seconds
from helpers.primitives.bucket_rule import MIB, split_into_buckets
from helpers.records import CommEvent, CommLog
from helpers.specs import Link

DTYPES = {1: "uint8", 2: "bfloat16", 4: "float32", 8: "float64"}


def naive_ddp_traffic(
    parameters: Sequence[int], *, world_size: int, dtype_bytes: int = 4, link: Link | None = None, rank: int = 0
) -> CommLog:
    """One all_reduce a parameter, in the order given. parameters: elements of each. Raises ValueError."""
    return _all_reduces(_sizes(parameters), world_size, dtype_bytes, link, rank)


def flat_ddp_traffic(
    parameters: int | Sequence[int], *, world_size: int, dtype_bytes: int = 4, link: Link | None = None, rank: int = 0
) -> CommLog:
    """One all_reduce of everything, after the backward pass."""
    sizes = [parameters] if isinstance(parameters, int) else parameters
    return _all_reduces([sum(_sizes(sizes))], world_size, dtype_bytes, link, rank)


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
    bucket_bytes, first_bucket_bytes: torch's bucket_cap_mb counts MiB. Rule: `split_into_buckets`. Raises ValueError.
    """
    if isinstance(parameters, int):
        buckets = _brimful(parameters, dtype_bytes, min(first_bucket_bytes, bucket_bytes), bucket_bytes)
        return _all_reduces(buckets, world_size, dtype_bytes, link, rank)
    ready = _sizes(parameters)[::-1]
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
    events = [_event(op, n, num_devices, "uint8", 0, number) for number, (op, n) in enumerate(steps)]
    return CommLog(events=tuple(events))


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


def _sizes(parameters: Sequence[int]) -> list[int]:
    sizes = list(parameters)
    wrong = [size for size in sizes if isinstance(size, bool) or not isinstance(size, int) or size < 0]
    if wrong or not sizes:
        given = repr(wrong[0]) if wrong else "none at all"
        raise ValueError(f"parameters: got {given}, but each is a number of elements: [p.numel() for p in …]")
    return sizes


def _brimful(parameters: int, dtype_bytes: int, first_cap: float, cap: float) -> list[int]:
    _sizes([parameters])
    if min(first_cap, cap) < dtype_bytes:
        raise ValueError(f"a bucket of {min(first_cap, cap)} bytes holds no element of {dtype_bytes} bytes; raise it")
    buckets, left = [], parameters
    while left > 0:
        room = int((cap if buckets else first_cap) // dtype_bytes)
        buckets.append(min(room, left))
        left -= buckets[-1]
    return buckets


def _all_reduces(sizes: Sequence[int], world_size: int, dtype_bytes: int, link: Link | None, rank: int) -> CommLog:
    if dtype_bytes not in DTYPES:
        raise ValueError(f"dtype_bytes is {dtype_bytes!r}, but it must be one of {', '.join(map(str, DTYPES))}")
    events, now = [], 0.0
    for number, size in enumerate(sizes):
        took = seconds("all_reduce", size * dtype_bytes, world_size, link) if link else 0.0
        dtype = DTYPES[dtype_bytes]
        events.append(_event("all_reduce", size * dtype_bytes, world_size, dtype, rank, number, now, now + took, size))
        now += took
    return CommLog(events=tuple(events))


def _event(op, num_bytes, world_size, dtype, rank, number, start=0.0, end=0.0, elements=None) -> CommEvent:
    return CommEvent(
        rank=rank,
        op=op,
        payload_bytes=num_bytes,
        group="WORLD",
        group_ranks=tuple(range(world_size)),
        sequence=number,
        caller="predicted",
        start=start,
        end=end,
        dtype=dtype,
        shape=(num_bytes if elements is None else elements,),
        reduce_op="sum" if op in ("all_reduce", "reduce") else None,
    )
