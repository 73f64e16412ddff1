"""Provides `data_parallel`: one forward on several devices, in the four verbs of torch.nn.DataParallel."""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch


def data_parallel(model, batch, devices):
    """The outputs of `model` for `batch`. devices[0] is the master, which has the model and gets the outputs."""
    # scatter: a chunk of the batch for each device
    chunks = [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices, strict=False)]
    # replicate: the whole model for each device, in every step
    replicas = [replicate(model, device) for device in devices[: len(chunks)]]
    # parallel apply: one thread per replica
    with ThreadPoolExecutor() as threads:
        outputs = list(threads.map(lambda replica, chunk: replica(chunk), replicas, chunks))
    # gather: all outputs on the master
    return torch.cat([output.to(devices[0]) for output in outputs])


def replicate(module, device):
    """A replica on `device`. Autograd follows each copy, so the gradients flow back to the master's parameters."""
    replica = copy.copy(module)
    replica._parameters = {name: p if p is None else p.to(device) for name, p in module._parameters.items()}
    replica._buffers = {name: b if b is None else b.to(device) for name, b in module._buffers.items()}
    replica._modules = {name: replicate(child, device) for name, child in module._modules.items()}
    return replica
