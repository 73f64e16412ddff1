"""Decides which gradients share a bucket, and so a message.

It works on plain numbers without torch, so that DDP and the simulator (helpers.predict.time) use the same rule.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

MIB = 1024**2  # torch's bucket_cap_mb counts in MiB as well
# bytes of a message that is sent by gloo: it copies each message into new memory, and from 32 MB on that is slow,
# because the system gives such memory page by page
GLOO_BUCKET = 8 * MIB


def split_into_buckets(
    sizes: Sequence[int],
    *,
    bucket_cap: float = 25 * MIB,
    first_bucket_cap: float = 1 * MIB,
    keys: Sequence[Hashable] | None = None,
) -> list[list[int]]:
    """Group the positions 0 .. len(sizes) - 1 into buckets, in the order in which the buckets fill up.

    sizes: bytes of each gradient, in the order in which they become ready. A bucket closes with the gradient that
    takes it to its cap (bytes) or beyond, so it may be larger than the cap. The first bucket closes earlier: its
    all-reduce then starts earlier. keys: gradients share a bucket only if their keys are equal (dtype and device).
    The rule is that of torch's reducer (compute_bucket_assignment_by_size in reducer.cpp). Raises ValueError for a
    cap that is not above 0.
    """
    if min(bucket_cap, first_bucket_cap) <= 0:
        raise ValueError(
            f"bucket caps of {bucket_cap} and {first_bucket_cap} bytes were given, but a cap must be above 0: "
            "give a larger one, or 1 for one gradient per bucket"
        )
    open_buckets: dict[Hashable, list[int]] = {}  # by key; one at a time for each
    closed: list[list[int]] = []
    seen: set[Hashable] = set()  # keys that have closed a bucket, so that the first cap no longer counts
    for position, key in enumerate(keys if keys is not None else [None] * len(sizes)):
        bucket = open_buckets.setdefault(key, [])
        bucket.append(position)
        cap = bucket_cap if key in seen else min(first_bucket_cap, bucket_cap)
        if sum(sizes[i] for i in bucket) >= cap:
            closed.append(open_buckets.pop(key))
            seen.add(key)
    return sorted(closed + list(open_buckets.values()), key=max)  # by the gradient that completes the bucket
