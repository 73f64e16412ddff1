"""A schedule as text: a line for each rank, with commas between its actions."""

from helpers.schedules import Action, Schedule


def written(text: str, name: str = "written") -> Schedule:
    rows = [[Action.parse(cell) for cell in line.split(",")] for line in text.split()]
    singles = [single for row in rows for action in row for single in action.singles]
    num_stages, num_microbatches = (1 + max(getattr(one, of) for one in singles) for of in ("stage", "microbatch"))
    return Schedule(name, num_stages, num_microbatches, rows, max(1, num_stages // len(rows)))
