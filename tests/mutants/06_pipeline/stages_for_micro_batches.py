"""Whoever takes the one number for the other."""

TASK = "06.gpipe"
HINT = "stages_for_micro_batches"


def gpipe(rank, num_stages, num_microbatches):
    return [f"{rank}{kind}{j}" for kind in "FB" for j in range(num_stages)]
