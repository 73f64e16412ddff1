"""Whoever knows "12 l h squared plus the tables" and takes it for exact."""

TASK = "05.count"
HINT = "only_matrices"


def num_params(num_layers, hidden, vocab, seq):
    return 12 * num_layers * hidden**2 + (vocab + seq) * hidden
