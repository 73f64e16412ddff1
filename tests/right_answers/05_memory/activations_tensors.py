"""Tensor by tensor, as they stand in the layer."""

TASK = "05.activations"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    tokens, ranks = s * b, t if sequence_parallel else 1
    norms = 2 * (2 * tokens * h)
    inputs = 2 * (2 * tokens * h)
    dropouts = 2 * (1 * tokens * h)
    qkv = 3 * (2 * tokens * h)
    projection = 2 * tokens * h
    feed_forward = 2 * (2 * tokens * 4 * h)
    maps = [] if flash else [2 * a * s * s * b, 1 * a * s * s * b, 2 * a * s * s * b]
    return (norms + inputs + dropouts) // ranks + (qkv + projection + feed_forward + sum(maps)) // t
