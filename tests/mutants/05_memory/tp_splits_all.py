"""Whoever divides by t: eight GPUs, an eighth of everything."""

TASK = "05.activations"
HINT = "tp_splits_all"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    total = 34 * s * b * h
    if not flash:
        total += 5 * a * s * s * b
    return total // t
