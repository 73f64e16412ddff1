"""Whoever is used to rotary positions, which have no parameters."""

TASK = "05.count"
HINT = "positions_forgotten"


def num_params(num_layers, hidden, vocab, seq):
    return num_layers * (12 * hidden**2 + 13 * hidden) + vocab * hidden + 2 * hidden
