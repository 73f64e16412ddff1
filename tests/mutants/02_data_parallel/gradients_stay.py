"""Whoever copies with deepcopy: forward is right, backward fills gradients that nobody reads."""

import copy

TASK = "02.replicate"
HINT = "gradients_stay"


def replicate(model, num_devices):
    return [model, *(copy.deepcopy(model) for _ in range(num_devices - 1))]
