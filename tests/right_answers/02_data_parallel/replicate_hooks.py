"""Leaves of their own, each with a hook that adds its gradient to the master's."""

import copy

TASK = "02.replicate"


def replicate(model, num_devices):
    replicas = [model]
    for _ in range(1, num_devices):
        twin = copy.deepcopy(model)
        for mine, masters in zip(twin.parameters(), model.parameters(), strict=True):

            def back(gradient, masters=masters):
                masters.grad = gradient.clone() if masters.grad is None else masters.grad + gradient

            if mine.requires_grad:
                mine.register_hook(back)
        replicas.append(twin)
    return replicas
