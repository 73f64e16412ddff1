"""Whoever thinks of DDP, where every rank has an optimizer."""

import math

TASK = "02.memory"
HINT = "optimizer_everywhere"


def memory(num_devices, num_parameters, batch, input_bytes, output_bytes):
    size, devices = math.ceil(batch / num_devices), []
    for device in range(num_devices):
        rows = max(0, min(size, batch - device * size))
        weights = 4 * num_parameters if rows else 0
        own = {"parameters": weights, "gradients": weights, "optimizer": 2 * weights}
        devices.append(own | {"input": rows * input_bytes, "outputs": rows * output_bytes})
    master = devices[0]
    master["optimizer"] = 8 * num_parameters
    master["input"] = batch * input_bytes
    if num_devices > 1:
        master["outputs"] += batch * output_bytes
    return devices
