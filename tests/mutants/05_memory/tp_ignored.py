"""Whoever thinks that tensor parallelism splits weights, and activations are every rank's own."""

TASK = "05.activations"
HINT = "tp_ignored"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    total = 34 * s * b * h
    if not flash:
        total += 5 * a * s * s * b
    return total // t if sequence_parallel else total
