"""Provides `data_parallel`: one forward on several devices, in the four verbs of torch.nn.DataParallel."""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch


def data_parallel(model, batch, devices):
    """The outputs of `model` for `batch`. devices[0] is the master, which has the model and gets the outputs."""
    # scatter: a chunk of the batch for each device
    chunks = [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices, strict=False)]
    # replicate: the master uses the model itself, and each other device gets a replica, in every step
    replicas = [model, *(replicate(model, device) for device in devices[1 : len(chunks)])]
    # parallel apply: one thread per replica
    with ThreadPoolExecutor() as threads:
        outputs = list(threads.map(lambda replica, chunk: replica(chunk), replicas, chunks))
    # gather: all outputs on the master
    return torch.cat([output.to(devices[0]) for output in outputs])


def replicate(module, device):
    """A replica on `device`. Autograd follows each copy, so the gradients flow back to the master's parameters."""

    def copied(tensor):
        return tensor if tensor is None else tensor.to(device, copy=True)  # copies even from one CPU to the same CPU

    replica = copy.copy(module)
    replica._parameters = {name: copied(parameter) for name, parameter in module._parameters.items()}
    replica._buffers = {name: copied(buffer) for name, buffer in module._buffers.items()}
    replica._modules = {name: replicate(child, device) for name, child in module._modules.items()}
    return replica
