"""Whoever takes flash attention for a faster kernel and no more."""

TASK = "05.activations"
HINT = "flash_keeps_maps"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    whole = 10 * s * b * h
    if sequence_parallel:
        whole //= t
    total = whole + 24 * s * b * h // t
    total += 5 * a * s * s * b // t
    return total
