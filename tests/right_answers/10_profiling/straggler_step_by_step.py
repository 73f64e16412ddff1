"""A class with a place for each rank, and no table."""

from collections import Counter
from statistics import median

TASK = "10.straggler"


def straggler(timelines):
    waits, parts = Counter(), [Counter() for _ in timelines]
    first, final = float("inf"), 0.0
    for number in range(len(timelines[0])):
        steps = [own[number] for own in timelines]
        called = {}
        for rank, step in enumerate(steps):
            for lane, start, end in step:
                first, final = min(first, start), max(final, end)
                if lane == "communication":
                    called[rank] = start
                else:
                    parts[rank][lane] += end - start
        late = max(called, key=called.get)
        for rank, step in enumerate(steps):
            waits[late] += called[late] - called[rank]
            parts[rank]["link"] += max(end for _, _, end in step) - called[late]
    (rank, seconds), *_ = waits.most_common(1)
    if 10 * seconds <= (len(timelines) - 1) * (final - first):
        return None

    def excess(cause):
        return parts[rank][cause] - median(parts[r][cause] for r in range(len(parts)) if r != rank)

    return [rank, max(["link", "compute", "data"], key=excess)]
