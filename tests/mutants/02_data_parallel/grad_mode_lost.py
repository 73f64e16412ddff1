"""Whoever takes no_grad for a mode of the process: evaluation keeps every activation."""

import threading

import torch

TASK = "02.parallel_apply"
HINT = "grad_mode_lost"


def parallel_apply(replicas, inputs):
    outputs = [None] * len(replicas)
    cast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def work(device):
        try:
            with torch.autocast("cpu", enabled=cast, dtype=dtype):
                outputs[device] = replicas[device](inputs[device])
        except Exception as error:
            error.add_note(f"in the replica on device {device}")
            outputs[device] = error

    threads = [threading.Thread(target=work, args=(device,)) for device in range(len(replicas))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for output in outputs:
        if isinstance(output, Exception):
            raise output
    return outputs
