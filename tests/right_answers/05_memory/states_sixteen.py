"""Starts from 16 bytes a parameter and takes away."""

import math

TASK = "05.states"


def model_states(num_params, precision, zero, dp):
    states = {"parameters": 2, "gradients": 2, "optimizer": 12}
    if precision == "fp32":
        states = {"parameters": 4, "gradients": 4, "optimizer": 8}
    if precision == "mixed_fp32_grads":
        states["gradients"] = 4
    sharded = ["optimizer", "gradients", "parameters"][:zero]
    share = math.ceil(num_params / dp)
    return {kind: size * (share if kind in sharded else num_params) for kind, size in states.items()}
