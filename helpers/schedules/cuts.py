"""Where a chain of layers is cut into stages. Plain numbers: the pipeline and the predictions use this one rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def balanced(costs: Sequence[float], num_stages: int) -> list[int]:
    """How many layers each stage gets, so that the largest sum of costs is the smallest possible; at least one each.

    Dynamic programming over the last cut, O(layers^2 * stages). Raises ValueError for more stages than layers.
    """
    num_layers = len(costs)
    if not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"{num_layers} layers cannot be cut into {num_stages} stages: each needs at least one layer, so choose 1 "
            f"to {num_layers} stages, or cut the model into more layers"
        )
    sums = list(accumulate(costs, initial=0.0))
    best = [[float("inf")] * (num_layers + 1) for _ in range(num_stages + 1)]  # best[s][n]: first n layers, s stages
    cut = [[0] * (num_layers + 1) for _ in range(num_stages + 1)]
    best[0][0] = 0.0
    for stage in range(1, num_stages + 1):
        for end in range(stage, num_layers + 1):
            for start in range(stage - 1, end):
                worst = max(best[stage - 1][start], sums[end] - sums[start])
                if worst < best[stage][end]:
                    best[stage][end], cut[stage][end] = worst, start
    sizes, end = [], num_layers
    for stage in range(num_stages, 0, -1):
        sizes.append(end - cut[stage][end])
        end = cut[stage][end]
    return sizes[::-1]
