"""From each bucket on, if nothing waited any more: the latest of these ends is the end."""

TASK = "11.exposed"


def exposed_seconds(ready, sizes, backward, ranks, gbit):
    bytes_per_second = gbit * 1e9 / 8
    takes = [(size + size - 2 * size / ranks) / bytes_per_second for size in sizes]
    ends = [ready[i] + sum(takes[i:]) for i in range(len(ready))]
    return max(max(ends) - backward, 0)
