"""Whoever searches over all cuts, and lets two of them fall together. Slowest first."""

from itertools import combinations_with_replacement

TASK = "06.cut"
HINT = "empty_stage"


def cut(costs, num_stages):
    best = None
    for cuts in combinations_with_replacement(range(len(costs) + 1), num_stages - 1):
        ends = [0, *cuts, len(costs)]
        slowest = max(sum(costs[a:b]) for a, b in zip(ends, ends[1:], strict=False))
        if best is None or slowest <= best[0]:
            best = slowest, [b - a for a, b in zip(ends, ends[1:], strict=False)]
    return [0, *best[1][1:-1], best[1][0] + best[1][-1]] if num_stages > 1 else best[1]
