"""Whoever takes the name at its word: one forward, one backward."""

TASK = "06.one_f_one_b"
HINT = "one_after_the_other"


def one_f_one_b(rank, num_stages, num_microbatches):
    return [f"{rank}{kind}{j}" for j in range(num_microbatches) for kind in "FB"]
