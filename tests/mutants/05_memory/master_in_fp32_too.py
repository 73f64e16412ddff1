"""Whoever learned "12 bytes of optimizer" by heart, and uses it for fp32 as well."""

TASK = "05.states"
HINT = "master_in_fp32_too"


BYTES = {"fp32": (4, 4, 12), "mixed": (2, 2, 12), "mixed_fp32_grads": (2, 4, 12)}


def model_states(num_params, precision, zero, dp):
    weight, gradient, state = BYTES[precision]
    share = -(-num_params // dp)
    optimizer = share if zero >= 1 else num_params
    gradients = share if zero >= 2 else num_params
    parameters = share if zero >= 3 else num_params
    return {"parameters": parameters * weight, "gradients": gradients * gradient, "optimizer": optimizer * state}
