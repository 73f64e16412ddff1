"""Whoever takes the dtype of .grad for granted: torch gives it that of the parameter."""

TASK = "05.states"
HINT = "gradients_as_parameters"


BYTES = {"fp32": (4, 4, 8), "mixed": (2, 2, 12), "mixed_fp32_grads": (2, 2, 12)}


def model_states(num_params, precision, zero, dp):
    weight, gradient, state = BYTES[precision]
    share = -(-num_params // dp)
    optimizer = share if zero >= 1 else num_params
    gradients = share if zero >= 2 else num_params
    parameters = share if zero >= 3 else num_params
    return {"parameters": parameters * weight, "gradients": gradients * gradient, "optimizer": optimizer * state}
