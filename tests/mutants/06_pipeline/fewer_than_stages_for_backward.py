"""Whoever limits the forwards and not the turns."""

TASK = "06.one_f_one_b"
HINT = "fewer_than_stages"


def one_f_one_b(rank, num_stages, num_microbatches):
    warm_up = num_stages - rank
    actions = [f"{rank}F{j}" for j in range(min(warm_up, num_microbatches))]
    for j in range(num_microbatches - warm_up):
        actions += [f"{rank}B{j}", f"{rank}F{warm_up + j}"]
    return actions + [f"{rank}B{j}" for j in range(num_microbatches - warm_up, num_microbatches)]
