"""Whoever stops when the forwards are over."""

TASK = "06.one_f_one_b"
HINT = "rest_forgotten"


def one_f_one_b(rank, num_stages, num_microbatches):
    warm_up = min(num_stages - rank, num_microbatches)
    actions = [f"{rank}F{j}" for j in range(warm_up)]
    for j in range(num_microbatches - warm_up):
        actions += [f"{rank}B{j}", f"{rank}F{warm_up + j}"]
    return actions
