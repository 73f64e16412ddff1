"""Whoever counts a dropout mask like any other 16-bit tensor."""

TASK = "05.activations"
HINT = "masks_of_two_bytes"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    whole = 12 * s * b * h
    if sequence_parallel:
        whole //= t
    total = whole + 24 * s * b * h // t
    if not flash:
        total += 6 * a * s * s * b // t
    return total
