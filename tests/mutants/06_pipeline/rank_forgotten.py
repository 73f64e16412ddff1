"""Whoever copies the example of rank 0."""

TASK = "06.gpipe"
HINT = "rank_forgotten"


def gpipe(rank, num_stages, num_microbatches):
    return [f"0{kind}{j}" for kind in "FB" for j in range(num_microbatches)]
