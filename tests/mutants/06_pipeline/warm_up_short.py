"""Whoever takes Megatron's warm-up, p - rank - 1, and then starts with a backward."""

TASK = "06.one_f_one_b"
HINT = "warm_up_short"


def one_f_one_b(rank, num_stages, num_microbatches):
    warm_up = min(num_stages - rank - 1, num_microbatches)
    actions = [f"{rank}F{j}" for j in range(warm_up)]
    for j in range(num_microbatches):
        actions.append(f"{rank}B{j}")
        if warm_up + j < num_microbatches:
            actions.append(f"{rank}F{warm_up + j}")
    return actions
