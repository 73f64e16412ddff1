"""Whoever does not know that a thread has nobody to raise to: the output is None, and the error comes much later."""

import threading

import torch

TASK = "02.parallel_apply"
HINT = "exception_swallowed"


def parallel_apply(replicas, inputs):
    outputs, grad = [None] * len(replicas), torch.is_grad_enabled()
    cast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def work(device):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", enabled=cast, dtype=dtype):
            outputs[device] = replicas[device](inputs[device])

    threads = [threading.Thread(target=work, args=(device,)) for device in range(len(replicas))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs
