"""A tuple is a list, too."""

TASK = "06.gpipe"


def gpipe(rank, num_stages, num_microbatches):
    return tuple(f"{rank}{kind}{j}" for kind in "FB" for j in range(num_microbatches))
