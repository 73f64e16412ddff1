"""Whoever knows the formula by heart: (p-1) / (m + p - 1)."""

TASK = "06.bubble"
HINT = "formula_of_equal_stages"


def bubble(schedule, forward, backward):
    p, m = len(schedule), len(schedule[0]) // 2
    most = []
    for row in schedule:
        held = [sum(1 if "F" in action else -1 for action in row[: i + 1]) for i in range(len(row))]
        most.append(max(held))
    return (p - 1) / (m + p - 1), most
