"""Predicts each message of a layer of experts that are split over ranks, from what the router has chosen.

How many bytes go where depends on the tokens, so the prediction starts from counts: rows[r][e] is the number of choices
of rank r's tokens that fall on expert e. Rank r has experts r E/N to (r+1) E/N - 1.

    counts     all-to-all of E integers of 8 bytes
    dispatch   all-to-all; rank r passes in one row of h elements for each of its choices
    combine    all-to-all; rank r passes in one row for each choice that fell on its experts
    backward   the gradient of combine has the rows of dispatch, and the gradient of dispatch those of combine

A token whose experts are on one node crosses the network once for each of them, or once in all if its copies are made
there (deduplication; DeepSeek-V3 2024, section 3.2.2, and DeepEP). `crossings` counts both.
"""

from __future__ import annotations

from collections.abc import Sequence

from helpers.predict.traffic.predicted_log import PredictedLog
from helpers.records import CommLog


def expert_parallel_traffic(
    rows: Sequence[Sequence[int]], *, rank: int, hidden: int, dtype_bytes: int = 2, backward: bool = True
) -> CommLog:
    """Every operation of `rank` in one layer, forward and then backward, in the order of their calls.

    rows: (N, E), see above. Raises ValueError where N does not divide E, or the rows have different lengths.
    """
    here = experts_of(rank, rows)
    sent, received = sum(rows[rank]), sum(each[expert] for each in rows for expert in here)
    traffic = PredictedLog(len(rows), dtype_bytes=dtype_bytes)
    traffic.add("all_to_all", (len(rows[rank]),), "counts", dtype_bytes=8)
    traffic.add("all_to_all", (sent, hidden), "dispatch")
    traffic.add("all_to_all", (received, hidden), "combine")
    if backward:
        traffic.add("all_to_all", (sent, hidden), "gradient of combine")
        traffic.add("all_to_all", (received, hidden), "gradient of dispatch")
    return traffic.log


def rows_to_others(rows: Sequence[Sequence[int]], rank: int) -> int:
    """How many rows rank `rank` dispatches to experts of other ranks, and gets back in combine."""
    here = experts_of(rank, rows)
    return sum(count for expert, count in enumerate(rows[rank]) if expert not in here)


def crossings(
    chosen: Sequence[Sequence[int]], *, node: int, experts_per_node: int, deduplicated: bool = False
) -> int:  # fmt: skip
    """How many rows the tokens of a node send to other nodes in dispatch. chosen: (T, k), the experts of each token.

    deduplicated: a token goes once to each node that has some of its experts. A choice of -1 goes nowhere.
    """
    nodes = [[expert // experts_per_node for expert in experts if expert >= 0] for experts in chosen]
    if deduplicated:
        nodes = [set(each) for each in nodes]
    return sum(target != node for each in nodes for target in each)


def experts_of(rank: int, rows: Sequence[Sequence[int]]) -> range:
    """The numbers of this rank's experts. Raises ValueError where the ranks cannot share the experts."""
    num_experts = len(rows[0])
    if num_experts % len(rows) or any(len(each) != num_experts for each in rows):
        raise ValueError(
            f"expert_parallel_traffic got counts of {', '.join(str(len(each)) for each in rows)} experts from "
            f"{len(rows)} ranks: every rank needs the counts of all experts, whose number the ranks must divide"
        )
    share = num_experts // len(rows)
    return range(rank * share, (rank + 1) * share)
