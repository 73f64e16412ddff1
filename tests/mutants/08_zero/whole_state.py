"""Whoever loads everything everywhere."""

import torch

TASK = "08.resume"
HINT = "whole_state"


def resume(files, num_elements, rank, world_size):
    old = sorted(files.values(), key=lambda file: file["rank"])
    state = {"step": old[0]["step"]}
    for name in ("parameters", "exp_avg", "exp_avg_sq"):
        line = torch.cat([file[name] for file in old])[:num_elements]
        state[name] = line
    return state
