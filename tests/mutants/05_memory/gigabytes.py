"""Whoever answers as the paper's table does, in GB."""

TASK = "05.states"
HINT = "gigabytes"


BYTES = {"fp32": (4, 4, 8), "mixed": (2, 2, 12), "mixed_fp32_grads": (2, 4, 12)}


def model_states(num_params, precision, zero, dp):
    weight, gradient, state = BYTES[precision]
    share = -(-num_params // dp)
    optimizer = share if zero >= 1 else num_params
    gradients = share if zero >= 2 else num_params
    parameters = share if zero >= 3 else num_params
    return {
        "parameters": parameters * weight / 1e9,
        "gradients": gradients * gradient / 1e9,
        "optimizer": optimizer * state / 1e9,
    }
