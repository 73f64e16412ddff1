"""Whoever splits the columns and forgets that heads are columns too."""

TASK = "05.activations"
HINT = "maps_not_split"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    whole = 10 * s * b * h
    if sequence_parallel:
        whole //= t
    total = whole + 24 * s * b * h // t
    if not flash:
        total += 5 * a * s * s * b
    return total
