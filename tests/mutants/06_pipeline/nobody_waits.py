"""Whoever adds up each rank's own list."""

import re

TASK = "06.bubble"
HINT = "nobody_waits"


def bubble(schedule, forward, backward):
    p = len(schedule)
    todo, ends, free, busy = [list(row) for row in schedule], {}, [0.0] * p, [0.0] * p
    held, most = [0] * p, [0] * p
    while any(todo):
        for rank, row in enumerate(todo):
            while row:
                stage, kind, j = re.fullmatch(r"(\d+)([FB])(\d+)", row[0]).groups()
                stage, j = int(stage), int(j)
                start = free[rank]
                row.pop(0)
                seconds = (forward if kind == "F" else backward)[rank]
                free[rank] = ends[stage, kind, j] = start + seconds
                busy[rank] += seconds
                held[rank] += (kind == "F") - (kind == "B")
                most[rank] = max(most[rank], held[rank])
    return 1 - sum(busy) / p / max(free), most
