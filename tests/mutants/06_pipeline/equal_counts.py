"""Whoever gives each stage as many layers."""

TASK = "06.cut"
HINT = "equal_counts"


def cut(costs, num_stages):
    each, rest = divmod(len(costs), num_stages)
    return [each + (stage < rest) for stage in range(num_stages)]
