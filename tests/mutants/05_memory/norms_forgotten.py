"""Whoever counts what multiplies: a norm looks like it had no weights."""

TASK = "05.count"
HINT = "norms_forgotten"


def num_params(num_layers, hidden, vocab, seq):
    attention = 4 * hidden**2 + 4 * hidden
    feed_forward = 8 * hidden**2 + 5 * hidden
    return num_layers * (attention + feed_forward) + (vocab + seq) * hidden
