"""Whoever raises what was caught: eight devices, one traceback, and no word of which."""

import threading

import torch

TASK = "02.parallel_apply"
HINT = "device_unnamed"


def parallel_apply(replicas, inputs):
    outputs, grad = [None] * len(replicas), torch.is_grad_enabled()
    cast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def work(device):
        try:
            with torch.set_grad_enabled(grad), torch.autocast("cpu", enabled=cast, dtype=dtype):
                outputs[device] = replicas[device](inputs[device])
        except Exception as error:
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
