"""A deep copy for the code and the buffers, called with clones of the master's weights."""

import copy

import torch

TASK = "02.replicate"


def replicate(model, num_devices):
    replicas = [model]
    for _ in range(1, num_devices):
        twin = copy.deepcopy(model)
        weights = {name: p.clone() for name, p in model.named_parameters()}
        replicas.append(lambda x, twin=twin, weights=weights: torch.func.functional_call(twin, weights, (x,)))
    return replicas
