"""Whoever keeps a slice of the joined line: every rank then holds all of it."""

import torch
import torch.nn.functional as F

TASK = "08.resume"
HINT = "view_of_the_whole"


def resume(files, num_elements, rank, world_size):
    old = sorted(files.values(), key=lambda file: file["rank"])
    state = {"step": old[0]["step"]}
    for name in ("parameters", "exp_avg", "exp_avg_sq"):
        line = torch.cat([file[name] for file in old])[:num_elements]
        line = F.pad(line, (0, -num_elements % world_size))
        state[name] = line.chunk(world_size)[rank]
    return state
