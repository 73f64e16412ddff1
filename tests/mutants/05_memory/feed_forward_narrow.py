"""Whoever forgets that the feed-forward part is four times as wide inside."""

TASK = "05.count"
HINT = "feed_forward_narrow"


def num_params(num_layers, hidden, vocab, seq):
    attention = 4 * (hidden * hidden + hidden)
    feed_forward = 2 * (hidden * hidden + hidden)
    return num_layers * (attention + feed_forward + 4 * hidden) + (vocab + seq + 2) * hidden
