"""Files by their number, shards as rows of a matrix, and the step as a tensor, as torch.optim keeps it."""

import torch

TASK = "08.resume"


def resume(files, num_elements, rank, world_size):
    old = [files[f"rank_{number}.pt"] for number in range(len(files))]
    length = (num_elements - 1) // world_size + 1

    def cut(name):
        line = torch.stack([file[name] for file in old]).flatten()[:num_elements]
        whole = line.new_zeros(world_size * length)
        whole[:num_elements] = line
        return whole[rank * length : (rank + 1) * length].clone()

    state = {name: cut(name) for name in old[0] if name not in ("rank", "step")}
    return {"step": torch.tensor(float(old[-1]["step"]))} | state
