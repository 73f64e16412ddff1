"""Whoever hears "query, key, value" and counts three matrices."""

TASK = "05.count"
HINT = "projection_forgotten"


def num_params(num_layers, hidden, vocab, seq):
    attention = 3 * (hidden * hidden + hidden)
    feed_forward = 8 * hidden**2 + 5 * hidden
    return num_layers * (attention + feed_forward + 4 * hidden) + (vocab + seq + 2) * hidden
