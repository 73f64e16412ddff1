"""Whoever takes the futures as they complete: the batch comes back shuffled, and targets belong to other rows."""

from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

TASK = "02.parallel_apply"
HINT = "order_of_completion"


def parallel_apply(replicas, inputs):
    grad, cast = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu")

    def work(device):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=dtype, enabled=cast):
            return replicas[device](inputs[device])

    with ThreadPoolExecutor(len(replicas)) as pool:
        futures = {pool.submit(work, device): device for device in range(len(replicas))}
        done = list(as_completed(futures))
    for future in done:
        if future.exception():
            future.exception().add_note(f"device {futures[future]}")
    return [future.result() for future in done]
