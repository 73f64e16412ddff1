"""Whoever counts tensors that hold numbers, and a mask holds none."""

TASK = "05.activations"
HINT = "masks_left_out"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    whole = 8 * s * b * h
    if sequence_parallel:
        whole //= t
    total = whole + 24 * s * b * h // t
    if not flash:
        total += 4 * a * s * s * b // t
    return total
