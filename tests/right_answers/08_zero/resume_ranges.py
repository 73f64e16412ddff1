"""Copies from each old file what falls into the own range: the whole line is never there."""

import math

import torch

TASK = "08.resume"


def resume(files, num_elements, rank, world_size):
    new = math.ceil(num_elements / world_size)
    begin, state = rank * new, {}
    for file in files.values():
        old = len(file["parameters"])
        start = file["rank"] * old
        a, b = max(begin, start), min(begin + new, start + old, num_elements)
        for name in ("parameters", "exp_avg", "exp_avg_sq"):
            own = state.setdefault(name, torch.zeros(new, dtype=file[name].dtype))
            if a < b:
                own[a - begin : b - begin] = file[name][a - start : b - start]
        state["step"] = file["step"]
    return state
