"""Whoever remembers "34 s b h" and not what follows: the part that grows with the square."""

TASK = "05.activations"
HINT = "map_forgotten"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    whole = 10 * s * b * h
    if sequence_parallel:
        whole //= t
    total = whole + 24 * s * b * h // t
    return total
