"""Whoever does not divide by the length of the step."""

import re

TASK = "06.bubble"
HINT = "idle_seconds"


def bubble(schedule, forward, backward):
    p = len(schedule)
    todo, ends, free, busy = [list(row) for row in schedule], {}, [0.0] * p, [0.0] * p
    held, most = [0] * p, [0] * p
    while any(todo):
        for rank, row in enumerate(todo):
            while row:
                stage, kind, j = re.fullmatch(r"(\d+)([FB])(\d+)", row[0]).groups()
                stage, j = int(stage), int(j)
                need = (stage - 1, "F", j) if kind == "F" else (stage + 1, "B", j)
                first = kind == "F" and stage == 0 or kind == "B" and stage == p - 1
                if not first and need not in ends:
                    break
                start = max(free[rank], 0.0 if first else ends[need])
                row.pop(0)
                seconds = (forward if kind == "F" else backward)[rank]
                free[rank] = ends[stage, kind, j] = start + seconds
                busy[rank] += seconds
                held[rank] += (kind == "F") - (kind == "B")
                most[rank] = max(most[rank], held[rank])
    return max(free) - sum(busy) / p, most
