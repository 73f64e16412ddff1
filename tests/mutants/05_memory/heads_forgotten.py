"""Whoever sees one attention map, as in every picture of attention."""

TASK = "05.activations"
HINT = "heads_forgotten"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    whole = 10 * s * b * h
    if sequence_parallel:
        whole //= t
    total = whole + 24 * s * b * h // t
    if not flash:
        total += 5 * s * s * b // t
    return total
