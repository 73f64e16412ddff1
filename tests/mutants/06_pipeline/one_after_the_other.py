"""Whoever writes gradient accumulation: forward and backward of each micro-batch in one loop."""

TASK = "06.gpipe"
HINT = "one_after_the_other"


def gpipe(rank, num_stages, num_microbatches):
    return [f"{rank}{kind}{j}" for j in range(num_microbatches) for kind in "FB"]
