"""Whoever thinks that later stages have to warm up longer."""

TASK = "06.one_f_one_b"
HINT = "warm_up_turned_round"


def one_f_one_b(rank, num_stages, num_microbatches):
    warm_up = min(rank + 1, num_microbatches)
    actions = [f"{rank}F{j}" for j in range(warm_up)]
    for j in range(num_microbatches):
        actions.append(f"{rank}B{j}")
        if warm_up + j < num_microbatches:
            actions.append(f"{rank}F{warm_up + j}")
    return actions
