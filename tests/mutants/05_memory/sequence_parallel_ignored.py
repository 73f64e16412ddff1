"""Whoever takes sequence parallelism for the same thing as tensor parallelism."""

TASK = "05.activations"
HINT = "sequence_parallel_ignored"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    whole = 10 * s * b * h
    total = whole + 24 * s * b * h // t
    if not flash:
        total += 5 * a * s * s * b // t
    return total
