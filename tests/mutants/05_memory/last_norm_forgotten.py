"""Whoever counts the layers and the tables, and not what stands between them."""

TASK = "05.count"
HINT = "last_norm_forgotten"


def num_params(num_layers, hidden, vocab, seq):
    return num_layers * (12 * hidden**2 + 13 * hidden) + (vocab + seq) * hidden
