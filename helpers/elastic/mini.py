"""Provides heartbeats, a verdict on them, and generations of ranks, on one screen, in plain torch.

The ranks reach a key-value store (torch's TCPStore). mini_job.py is a job that uses all three and survives a death.
heartbeat.py and rendezvous.py are the forms of a larger job, which also tell a slow rank from a hung one.
"""

import threading
import time

import torch.distributed as dist


class HeartbeatThread:
    """Reports ten times per second that this rank lives, and the step of the last all-reduce that it has called."""

    def __init__(self, store, rank, every=0.1):
        self.step = 0  # the main thread sets it
        threading.Thread(target=self.send, args=(store, rank, every), daemon=True).start()

    def send(self, store, rank, every):
        while True:  # also while the main thread hangs
            store.set(f"beat{rank}", f"{self.step} {time.monotonic()}")
            time.sleep(every)


def verdict(beats, ranks, started, now, limits):
    """A word for each rank. beats: (rank, step, sent, arrived), of which only `arrived` is on the agent's clock."""
    last, steps, since = [started] * ranks, [0] * ranks, [started] * ranks
    for rank, step, _, arrived in beats:
        last[rank] = arrived
        if step > steps[rank]:
            steps[rank], since[rank] = step, arrived
    dead = [now - seen > limits["dead"] for seen in last]
    words = ["dead" if is_dead else "alive" for is_dead in dead]
    for rank in range(ranks):
        if not dead[rank] and now - last[rank] > limits["late"]:
            words[rank] = "late"
        elif not any(dead) and steps[rank] == min(steps) and now - since[rank] > limits["hung"]:
            words[rank] = "hung"  # it waits for no other rank
    return words


def join(store, generation, num_ranks):
    """Meet the other ranks of a generation. Returns this process's rank, and the keys of this generation alone."""
    keys = dist.PrefixStore(f"generation {generation}", store)  # so no key of an older generation is read
    rank = keys.add("arrived", 1) - 1  # the store adds atomically, so every process gets another number
    dist.init_process_group("gloo", store=dist.PrefixStore("group", keys), rank=rank, world_size=num_ranks)
    return rank, keys
