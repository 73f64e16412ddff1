"""Whoever cuts what the old ranks had padded: their zeros move into the middle."""

import torch
import torch.nn.functional as F

TASK = "08.resume"
HINT = "old_zeros_kept"


def resume(files, num_elements, rank, world_size):
    old = sorted(files.values(), key=lambda file: file["rank"])
    state = {"step": old[0]["step"]}
    for name in ("parameters", "exp_avg", "exp_avg_sq"):
        line = torch.cat([file[name] for file in old])
        line = F.pad(line, (0, -len(line) % world_size))
        state[name] = line.chunk(world_size)[rank].clone()
    return state
