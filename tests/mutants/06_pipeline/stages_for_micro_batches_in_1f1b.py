"""Whoever works on as many micro-batches as there are stages."""

TASK = "06.one_f_one_b"
HINT = "stages_for_micro_batches"


def one_f_one_b(rank, num_stages, num_microbatches):
    warm_up, m = num_stages - rank, num_stages
    actions = [f"{rank}F{j}" for j in range(warm_up)]
    for j in range(m - warm_up):
        actions += [f"{rank}B{j}", f"{rank}F{warm_up + j}"]
    return actions + [f"{rank}B{j}" for j in range(m - warm_up, m)]
