"""Whoever adds up the layers of a picture, where embedding and head are two boxes."""

TASK = "05.count"
HINT = "head_counted_twice"


def num_params(num_layers, hidden, vocab, seq):
    return num_layers * (12 * hidden**2 + 13 * hidden) + (2 * vocab + seq) * hidden + 2 * hidden
