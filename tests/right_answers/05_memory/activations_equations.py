"""The paper's equations 1, 2 and 4, in floats."""

TASK = "05.activations"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    maps = 0 if flash else 5 * a * s / h
    if sequence_parallel:
        return s * b * h / t * (34 + maps)
    return s * b * h * (10 + 24 / t + maps / t)
