"""Whoever makes the fastest stage slow, and not the slowest fast."""

from itertools import combinations

TASK = "06.cut"
HINT = "not_the_best"


def cut(costs, num_stages):
    def ends(cuts):
        return list(zip([0, *cuts], [*cuts, len(costs)], strict=True))

    def fastest(cuts):
        return min(sum(costs[a:b]) for a, b in ends(cuts))

    best = max(combinations(range(1, len(costs)), num_stages - 1), key=fastest)
    return [b - a for a, b in ends(best)]
