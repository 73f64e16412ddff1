"""Whoever fills a stage until it has its share."""

TASK = "06.cut"
HINT = "greedy"


def cut(costs, num_stages):
    share, sizes, start = sum(costs) / num_stages, [], 0
    for left in range(num_stages - 1, 0, -1):
        end = start + 1
        while end < len(costs) - left and sum(costs[start:end]) < share:
            end += 1
        sizes.append(end - start)
        start = end
    return [*sizes, len(costs) - start]
