"""Whoever draws GPipe as the paper does: the last micro-batch goes back first."""

TASK = "06.gpipe"
HINT = "last_micro_batch_first"


def gpipe(rank, num_stages, num_microbatches):
    forwards = [f"{rank}F{j}" for j in range(num_microbatches)]
    return forwards + [f"{rank}B{j}" for j in reversed(range(num_microbatches))]
