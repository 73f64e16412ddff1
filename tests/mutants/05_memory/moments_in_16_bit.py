"""Whoever hears "mixed precision" and halves everything."""

TASK = "05.states"
HINT = "moments_in_16_bit"


BYTES = {"fp32": (4, 4, 8), "mixed": (2, 2, 4), "mixed_fp32_grads": (2, 4, 4)}


def model_states(num_params, precision, zero, dp):
    weight, gradient, state = BYTES[precision]
    share = -(-num_params // dp)
    optimizer = share if zero >= 1 else num_params
    gradients = share if zero >= 2 else num_params
    parameters = share if zero >= 3 else num_params
    return {"parameters": parameters * weight, "gradients": gradients * gradient, "optimizer": optimizer * state}
