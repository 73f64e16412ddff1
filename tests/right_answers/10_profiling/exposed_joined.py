"""The seconds of both together without those of compute: what is left is communication alone."""

TASK = "10.exposed"


def joined(spans):
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def exposed(communication, compute):
    return joined(communication + compute) - joined(compute)
