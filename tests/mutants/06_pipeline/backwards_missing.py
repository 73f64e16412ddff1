"""Whoever thinks of inference."""

TASK = "06.gpipe"
HINT = "backwards_missing"


def gpipe(rank, num_stages, num_microbatches):
    return [f"{rank}F{j}" for j in range(num_microbatches)]
