"""Whoever starts a new optimizer and fills in its moments only."""

import torch
import torch.nn.functional as F

TASK = "08.resume"
HINT = "step_lost"


def resume(files, num_elements, rank, world_size):
    old = sorted(files.values(), key=lambda file: file["rank"])
    state = {"step": 0}
    for name in ("parameters", "exp_avg", "exp_avg_sq"):
        line = torch.cat([file[name] for file in old])[:num_elements]
        line = F.pad(line, (0, -num_elements % world_size))
        state[name] = line.chunk(world_size)[rank].clone()
    return state
