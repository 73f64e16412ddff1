"""Start times by going through all actions until nothing moves any more."""

import re

TASK = "06.bubble"


def bubble(schedule, forward, backward):
    p, ends = len(schedule), {}
    parsed = [[re.split(r"(F|B)", action) for action in row] for row in schedule]
    parsed = [[(int(stage), kind, int(j)) for stage, kind, j in row] for row in parsed]
    moved = True
    while moved:
        moved = False
        for row in parsed:
            free = 0.0
            for stage, kind, j in row:
                other = (stage - 1, "F", j) if kind == "F" else (stage + 1, "B", j)
                end = max(free, ends.get(other, 0.0)) + (forward if kind == "F" else backward)[stage]
                moved = moved or ends.get((stage, kind, j)) != end
                free = ends[stage, kind, j] = end
    busy = [sum((forward if kind == "F" else backward)[stage] for stage, kind, _ in row) for row in parsed]
    held = []
    for row in parsed:
        counts = [1 if kind == "F" else -1 for _, kind, _ in row]
        held.append(max(sum(counts[: i + 1]) for i in range(len(counts))))
    return 1 - sum(busy) / (p * max(ends.values())), held
