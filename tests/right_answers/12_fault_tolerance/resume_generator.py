"""A generator of samples that begins at the right place; tuples in place of lists."""

from itertools import count, islice

TASK = "12.resume"


def next_samples(state, order, batch, rank, dp, steps):
    n = len(order(0))
    samples = (order(position // n)[position % n] for position in count(state["trained"]))
    own = batch // dp
    return tuple(tuple(islice(samples, batch))[rank * own : (rank + 1) * own] for _ in range(steps))
