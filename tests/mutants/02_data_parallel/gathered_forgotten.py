"""Whoever sees each replica's outputs and forgets what gather makes of them."""

import math

TASK = "02.memory"
HINT = "gathered_forgotten"


def memory(num_devices, num_parameters, batch, input_bytes, output_bytes):
    size, devices = math.ceil(batch / num_devices), []
    for device in range(num_devices):
        rows = max(0, min(size, batch - device * size))
        weights = 4 * num_parameters if rows else 0
        own = {"parameters": weights, "gradients": weights, "optimizer": 0}
        devices.append(own | {"input": rows * input_bytes, "outputs": rows * output_bytes})
    master = devices[0]
    master["optimizer"] = 8 * num_parameters
    master["input"] = batch * input_bytes
    return devices
