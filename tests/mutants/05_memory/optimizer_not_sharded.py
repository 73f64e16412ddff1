"""Whoever mixes up what comes first: gradients, then parameters, and the optimizer nowhere."""

TASK = "05.states"
HINT = "optimizer_not_sharded"


BYTES = {"fp32": (4, 4, 8), "mixed": (2, 2, 12), "mixed_fp32_grads": (2, 4, 12)}


def model_states(num_params, precision, zero, dp):
    weight, gradient, state = BYTES[precision]
    share = -(-num_params // dp)
    optimizer = num_params
    gradients = share if zero >= 2 else num_params
    parameters = share if zero >= 3 else num_params
    return {"parameters": parameters * weight, "gradients": gradients * gradient, "optimizer": optimizer * state}
