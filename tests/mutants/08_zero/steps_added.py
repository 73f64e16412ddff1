"""Whoever treats the step as a shard, and reduces it."""

import torch
import torch.nn.functional as F

TASK = "08.resume"
HINT = "steps_added"


def resume(files, num_elements, rank, world_size):
    old = sorted(files.values(), key=lambda file: file["rank"])
    state = {"step": sum(file["step"] for file in old)}
    for name in ("parameters", "exp_avg", "exp_avg_sq"):
        line = torch.cat([file[name] for file in old])[:num_elements]
        line = F.pad(line, (0, -num_elements % world_size))
        state[name] = line.chunk(world_size)[rank].clone()
    return state
