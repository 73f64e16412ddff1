"""As Megatron counts: p - rank - 1 forwards, then a forward and a backward in turn."""

TASK = "06.one_f_one_b"


def one_f_one_b(rank, num_stages, num_microbatches):
    warm_up = min(num_stages - rank - 1, num_microbatches)
    actions = [f"{rank}F{j}" for j in range(warm_up)]
    for j in range(num_microbatches - warm_up):
        actions += [f"{rank}F{warm_up + j}", f"{rank}B{j}"]
    return actions + [f"{rank}B{j}" for j in range(num_microbatches - warm_up, num_microbatches)]
