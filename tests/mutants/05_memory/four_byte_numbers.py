"""Whoever measures on a CPU in fp32 and wonders about the paper."""

TASK = "05.activations"
HINT = "four_byte_numbers"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    whole = (4 * 4 + 2) * s * b * h
    if sequence_parallel:
        whole //= t
    total = whole + 48 * s * b * h // t
    if not flash:
        total += 9 * a * s * s * b // t
    return total
