"""Whoever joins files as a folder lists them: rank_10.pt comes before rank_2.pt."""

import torch
import torch.nn.functional as F

TASK = "08.resume"
HINT = "sorted_by_name"


def resume(files, num_elements, rank, world_size):
    old = list(files.values())
    state = {"step": old[0]["step"]}
    for name in ("parameters", "exp_avg", "exp_avg_sq"):
        line = torch.cat([file[name] for file in old])[:num_elements]
        line = F.pad(line, (0, -num_elements % world_size))
        state[name] = line.chunk(world_size)[rank].clone()
    return state
