"""With Python's own regression of your seconds over mine, both counted from the first barrier."""

import statistics

TASK = "wb.clock"


def one_clock(mine, yours):
    first = (yours[0] - mine[0]).item()
    if len(mine) < 2:
        return [first, 0]
    line = statistics.linear_regression((mine - mine[0]).tolist(), (yours - yours[0]).tolist())
    return [first + line.intercept, line.slope - 1]
