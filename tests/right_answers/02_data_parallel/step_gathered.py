"""The outputs are gathered and the loss is the master's, in threads."""

from concurrent.futures import ThreadPoolExecutor

import torch

from helpers.parallel.data_parallel import replicate
from helpers.parallel.shared.devices import VirtualDevices

TASK = "02.step"


def train_step(model, optimizer, x, y, num_devices):
    pieces = x.chunk(num_devices)
    replicas = replicate(model, VirtualDevices(num_devices), len(pieces))
    optimizer.zero_grad()
    with ThreadPoolExecutor(len(pieces)) as pool:
        outputs = torch.cat(list(pool.map(lambda replica, piece: replica(piece), replicas, pieces)))
    loss = (outputs - y).square().sum(1).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
