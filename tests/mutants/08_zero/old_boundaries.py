"""Whoever loads the file of the own rank: right as long as nothing changes."""

TASK = "08.resume"
HINT = "old_boundaries"


def resume(files, num_elements, rank, world_size):
    old = sorted(files.values(), key=lambda file: file["rank"])
    mine = old[min(rank, len(old) - 1)]
    return {name: mine[name] for name in ("step", "parameters", "exp_avg", "exp_avg_sq")}
