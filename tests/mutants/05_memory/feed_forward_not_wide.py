"""Whoever counts one tensor of s b h for each box of the picture."""

TASK = "05.activations"
HINT = "feed_forward_not_wide"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    whole = 10 * s * b * h
    if sequence_parallel:
        whole //= t
    total = whole + 12 * s * b * h // t
    if not flash:
        total += 5 * a * s * s * b // t
    return total
