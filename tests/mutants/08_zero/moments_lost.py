"""Whoever loads the model and forgets the optimizer."""

import torch
import torch.nn.functional as F

TASK = "08.resume"
HINT = "moments_lost"


def resume(files, num_elements, rank, world_size):
    old = sorted(files.values(), key=lambda file: file["rank"])
    state = {"step": old[0]["step"]}
    for name in ("parameters", "exp_avg", "exp_avg_sq"):
        line = torch.cat([file[name] for file in old])[:num_elements]
        line = F.pad(line, (0, -num_elements % world_size))
        line = line if name == "parameters" else torch.zeros_like(line)
        state[name] = line.chunk(world_size)[rank].clone()
    return state
