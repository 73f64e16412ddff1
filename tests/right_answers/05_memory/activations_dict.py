"""Pairs of bytes and of who splits them."""

TASK = "05.activations"


def layer_activations(s, b, h, a, t, sequence_parallel, flash):
    by_token = {
        "norms": (4, False),
        "inputs": (4, False),
        "masks": (2, False),
        "attention": (8, True),
        "wide": (16, True),
    }
    total = 0
    for size, tensor_parallel in by_token.values():
        total += size * s * b * h // (t if tensor_parallel or sequence_parallel else 1)
    return total + (not flash) * 5 * (a // t if a % t == 0 else a / t) * s * s * b
