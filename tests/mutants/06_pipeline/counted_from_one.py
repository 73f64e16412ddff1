"""Whoever counts as the lecture's slide does."""

TASK = "06.gpipe"
HINT = "counted_from_one"


def gpipe(rank, num_stages, num_microbatches):
    return [f"{rank}{kind}{j + 1}" for kind in "FB" for j in range(num_microbatches)]
