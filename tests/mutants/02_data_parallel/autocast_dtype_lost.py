"""Torch's own parallel_apply: autocast is on again, with its default dtype."""

import threading

import torch

TASK = "02.parallel_apply"
HINT = "autocast_dtype_lost"


def parallel_apply(replicas, inputs):
    outputs, grad = [None] * len(replicas), torch.is_grad_enabled()
    cast = torch.is_autocast_enabled("cpu")

    def work(device):
        try:
            with torch.set_grad_enabled(grad), torch.autocast("cpu", enabled=cast):
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
