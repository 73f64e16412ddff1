"""The formula of the chapter, in floats."""

TASK = "05.count"


def num_params(num_layers, hidden, vocab, seq):
    h = float(hidden)
    return 12.0 * num_layers * h**2 + 13 * num_layers * h + (vocab + seq) * h + 2 * h
