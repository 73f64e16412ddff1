"""A list of shapes, multiplied and added up."""

from math import prod

TASK = "05.count"


def num_params(num_layers, hidden, vocab, seq):
    h = hidden
    layer = [(h,), (h,), (h, 3 * h), (3 * h,), (h, h), (h,), (h,), (h,), (h, 4 * h), (4 * h,), (4 * h, h), (h,)]
    rest = [(vocab, h), (seq, h), (h,), (h,)]
    return sum(map(prod, layer * num_layers + rest))
