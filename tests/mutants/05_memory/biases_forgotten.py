"""Whoever comes from Llama, which has no biases, and counts matrices and norms."""

TASK = "05.count"
HINT = "biases_forgotten"


def num_params(num_layers, hidden, vocab, seq):
    return num_layers * (12 * hidden**2 + 4 * hidden) + (vocab + seq) * hidden + 2 * hidden
