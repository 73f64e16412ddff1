"""Two queues: forwards and backwards."""

from collections import deque

TASK = "06.one_f_one_b"


def one_f_one_b(rank, num_stages, num_microbatches):
    forwards = deque(f"{rank}F{j}" for j in range(num_microbatches))
    backwards = deque(f"{rank}B{j}" for j in range(num_microbatches))
    actions = []
    while backwards:
        in_flight = len(backwards) - len(forwards)
        full = in_flight == num_stages - rank
        actions.append(forwards.popleft() if forwards and not full else backwards.popleft())
    return actions
