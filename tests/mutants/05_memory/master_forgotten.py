"""Whoever counts Adam as two moments everywhere; the fp32 weights hide inside the optimizer."""

TASK = "05.states"
HINT = "master_forgotten"


BYTES = {"fp32": (4, 4, 8), "mixed": (2, 2, 8), "mixed_fp32_grads": (2, 4, 8)}


def model_states(num_params, precision, zero, dp):
    weight, gradient, state = BYTES[precision]
    share = -(-num_params // dp)
    optimizer = share if zero >= 1 else num_params
    gradients = share if zero >= 2 else num_params
    parameters = share if zero >= 3 else num_params
    return {"parameters": parameters * weight, "gradients": gradients * gradient, "optimizer": optimizer * state}
