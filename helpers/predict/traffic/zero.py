"""Predicts the messages of a ZeRO step on one rank as a log, and what they add up to in closed form.

Chapter 08, its lab and the interview cards use both. N ranks, P bytes of parameters (and of gradients), m micro-batches
before one update. What a rank sends on a ring:

    data parallel       all_reduce of gradients                                              2 (N-1)/N P
    stage 1             reduce_scatter of gradients, all_gather of updated parameters        2 (N-1)/N P
    stage 1             all_reduce of gradients, all_gather of updated parameters            3 (N-1)/N P
    stage 2             reduce_scatter for each micro-batch, all_gather once                 (m + 1) (N-1)/N P
    stage 3             all_gather forward, all_gather and reduce_scatter backward, each
                        for each micro-batch                                                 3 m (N-1)/N P

Source: Rajbhandari et al. 2020 (ZeRO), section 7, which counts a reduce_scatter or an all_gather as P.
Sharded tensors are padded with zeros to N equal parts; `zero_traffic` counts the padding, the formulas leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.parallel.shared.bucket_rule import GLOO_BUCKET, split_into_buckets
from helpers.predict.traffic.predicted_log import PredictedLog, checked_sizes
from helpers.records import CommLog

REDUCES = ("reduce_scatter", "all_reduce")  # the operations that can reduce gradients; all_reduce in stage 1 alone
Units = Sequence[Sequence[int]]  # what travels together, as positions in the list of parameters


def zero_traffic(
    parameters: Sequence[int], *, stage: int, world_size: int, num_microbatches: int = 1,
    reduce: str = "reduce_scatter", units: Units | None = None, bucket_bytes: float = GLOO_BUCKET,
    no_sync: bool = False, keep_parameters: bool = False, recompute: bool = False,
    dtype_bytes: int = 4, reduce_dtype_bytes: int | None = None,
) -> CommLog:  # fmt: skip
    """Every operation of one update (all its micro-batches) on one rank, in order.

    parameters: elements of each, in the order of `model.parameters()`. units: the parameters that travel together, as
    positions in `parameters`, in the order in which forward uses them. By default stages 1 and 2 use buckets of
    `bucket_bytes` from the last parameter to the first (inf: all in one), and in stage 3 every entry is a unit (so pass
    the sizes of units as `parameters`). reduce: the operation for gradients, a choice of stage 1 alone. no_sync: all
    micro-batches but the last only accumulate full gradients (stage 1 always does).
    For stage 3 alone: with keep_parameters, full parameters are gathered for forward and kept until backward. With
    recompute, a checkpoint's second forward gathers for itself and frees (the course's ZeRO-3 does not).
    dtype_bytes: of what is gathered. reduce_dtype_bytes: of gradients, None for the same. Raises ValueError for an
    unknown stage or reduce, or wrong units.
    """
    _check(stage, reduce, num_microbatches)
    traffic = PredictedLog(world_size, dtype_bytes=dtype_bytes)
    sizes = _padded_sizes(checked_sizes(parameters), units, stage, bucket_bytes / dtype_bytes, world_size)  # elements
    width = reduce_dtype_bytes or dtype_bytes
    gathers = 0 if keep_parameters else 1 + recompute  # all_gathers per unit after forward; recompute counts as 0 or 1
    for j in range(num_microbatches):
        where, is_last = f"micro-batch {j}", j == num_microbatches - 1
        reduces = is_last or (stage > 1 and not no_sync)
        if stage == 3:
            _stage3_microbatch(traffic, sizes, where, gathers, reduces, width)
        elif reduces:
            _reduce(traffic, sizes, reduce, f"{where}, gradients", width)
    if stage < 3:
        _gather(traffic, sizes, "updated parameters")
    return traffic.log


def padded(elements: int, world_size: int) -> int:
    """Elements after padding to `world_size` equal parts."""
    return -(-elements // world_size) * world_size  # rounded up, in whole numbers


def padding_elements(parameters: Sequence[int], units: Units, *, world_size: int) -> int:
    """Zeros with which the units are padded, together: at most N - 1 per unit."""
    return sum(padded(total, world_size) - total for total in _totals(checked_sizes(parameters), units))


def data_parallel_share(world_size: int) -> float:
    """What a rank sends on a ring under plain data parallelism, over the bytes of the parameters: 2 (N-1)/N."""
    return 2 * (world_size - 1) / world_size


def stage1_share(world_size: int, *, reduce: str = "reduce_scatter") -> float:
    """What a rank sends under stage 1, over the bytes of the parameters.

    2 (N-1)/N with reduce_scatter, 3 (N-1)/N with all_reduce.
    """
    _check(1, reduce, 1)
    return (2 if reduce == "reduce_scatter" else 3) * (world_size - 1) / world_size


def stage2_share(world_size: int, *, num_microbatches: int = 1, no_sync: bool = False) -> float:
    """What a rank sends under stage 2, over the bytes of the parameters: (m + 1) (N-1)/N.

    Gradients are reduced and freed after each micro-batch, so they cannot be accumulated before. With no_sync it is
    2 (N-1)/N, at the price of full gradients on every rank.
    """
    return ((1 if no_sync else num_microbatches) + 1) * (world_size - 1) / world_size


def stage3_share(
    world_size: int, *, num_microbatches: int = 1, no_sync: bool = False, keep_parameters: bool = False,
    recompute: bool = False,
) -> float:  # fmt: skip
    """What a rank sends under stage 3, over the bytes of the parameters: 3 m (N-1)/N.

    With no_sync the factor is 2 m + 1. Keeping parameters from forward to backward saves m, and recomputation that
    gathers for itself costs m more.
    """
    gathers = (1 if keep_parameters else 2 + recompute) * num_microbatches
    reduces = 1 if no_sync else num_microbatches
    return (gathers + reduces) * (world_size - 1) / world_size


def tokens_where_tp_sends_as_much(hidden: int) -> float:
    """Tokens of a step's global batch at which a GPT layer sends as many bytes under ZeRO-3 as under TP.

    ZeRO-3 moves the layer's 12 h^2 weights three times, 36 (N-1)/N h^2, whatever the batch. Tensor parallelism moves
    activations of all T tokens in 4 all-reduces (Shoeybi et al. 2019, section 3), 8 (N-1)/N T h, whatever the width.
    Equal at T = 4.5 h; with more tokens ZeRO-3 sends less.
    """
    return 36 * hidden**2 / (8 * hidden)


def _stage3_microbatch(
    traffic: PredictedLog, sizes: Sequence[int], where: str, gathers: int, reduces: bool, width: int
) -> None:
    """A micro-batch of stage 3: forward through all units, then backward with `gathers` all_gathers per unit.

    reduces: whether gradients are reduced in this micro-batch. width: bytes of an element of a gradient.
    """
    _gather(traffic, sizes, f"{where}, forward, unit")
    for number in reversed(range(len(sizes))):
        for _ in range(gathers):
            traffic.add("all_gather", (sizes[number] // len(traffic.ranks),), f"{where}, backward, unit {number}")
        if reduces:
            traffic.add("reduce_scatter", (sizes[number],), f"{where}, backward, unit {number}", dtype_bytes=width)


def _reduce(traffic: PredictedLog, sizes: Sequence[int], op: str, where: str, width: int) -> None:
    """Add the operation that reduces the gradients of each unit."""
    for number, size in enumerate(sizes):
        traffic.add(op, (size,), f"{where} {number}", dtype_bytes=width)


def _gather(traffic: PredictedLog, sizes: Sequence[int], where: str) -> None:
    """Add an all_gather of each unit, into which a rank passes its shard."""
    for number, size in enumerate(sizes):
        traffic.add("all_gather", (size // len(traffic.ranks),), f"{where} {number}")


def _padded_sizes(sizes: Sequence[int], units: Units | None, stage: int, bucket: float, world_size: int) -> list[int]:
    """Elements of each unit, with padding."""
    units = _default_units(sizes, stage, bucket) if units is None else units
    return [padded(total, world_size) for total in _totals(sizes, units)]


def _default_units(sizes: Sequence[int], stage: int, bucket: float) -> list[list[int]]:
    """One unit per entry in stage 3; else buckets of at most `bucket` elements, from the last parameter on.

    split_into_buckets is the rule by which the course's DDP and ZeRO fill their buckets.
    """
    positions = list(range(len(sizes)))
    if stage == 3:
        return [[position] for position in positions]
    groups = split_into_buckets(sizes[::-1], bucket_cap=bucket, first_bucket_cap=bucket)
    return [[positions[::-1][i] for i in group] for group in groups]


def _totals(sizes: Sequence[int], units: Units) -> list[int]:
    """Elements of each unit. ValueError unless the units contain each parameter once."""
    listed = sorted(position for unit in units for position in unit)
    if listed != list(range(len(sizes))):
        raise ValueError(
            f"zero_traffic: the units hold the positions {listed}, but each of the {len(sizes)} parameters (0 to "
            f"{len(sizes) - 1}) must be in one unit, once"
        )
    return [sum(sizes[position] for position in unit) for unit in units]


def _check(stage: int, reduce: str, num_microbatches: int) -> None:
    """Raise ValueError for an unknown stage, an operation that the stage does not have, or no micro-batch."""
    if stage not in (1, 2, 3):
        raise ValueError(f"zero_traffic: stage is {stage!r}, but it must be 1, 2 or 3")
    if reduce not in REDUCES or (reduce == "all_reduce" and stage != 1):
        raise ValueError(
            f"zero_traffic: stage {stage} with reduce={reduce!r} does not exist; stage 1 takes "
            f"{' or '.join(map(repr, REDUCES))}, stages 2 and 3 'reduce_scatter'"
        )
    if isinstance(num_microbatches, bool) or not isinstance(num_microbatches, int) or num_microbatches < 1:
        raise ValueError(f"zero_traffic: num_microbatches is {num_microbatches!r}, but it must be 1 or more")
