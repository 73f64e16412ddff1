"""Whoever cuts again and forgets the zeros at the end."""

import torch

TASK = "08.resume"
HINT = "shards_differ_in_length"


def resume(files, num_elements, rank, world_size):
    old = sorted(files.values(), key=lambda file: file["rank"])
    state = {"step": old[0]["step"]}
    for name in ("parameters", "exp_avg", "exp_avg_sq"):
        line = torch.cat([file[name] for file in old])[:num_elements]
        length = -(-num_elements // world_size)
        state[name] = line[rank * length : (rank + 1) * length].clone()
    return state
