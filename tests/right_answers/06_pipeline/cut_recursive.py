"""The first stage, then the best of the rest."""

from functools import cache

TASK = "06.cut"


def cut(costs, num_stages):
    @cache
    def best(start, stages):
        if stages == 1:
            return sum(costs[start:]), (len(costs) - start,)
        found = []
        for end in range(start + 1, len(costs) - stages + 2):
            slowest, sizes = best(end, stages - 1)
            found.append((max(slowest, sum(costs[start:end])), (end - start, *sizes)))
        return min(found)

    return best(0, num_stages)[1]
