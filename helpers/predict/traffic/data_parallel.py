"""Predicts what nn.DataParallel sends in one training step, as a log, and the bytes that cross its master's link.

The master is the device that has the model and the batch. It sends to all other devices and receives from them.
"""

from __future__ import annotations

from helpers.predict.traffic.predicted_log import PredictedLog
from helpers.records import CommLog


def data_parallel_traffic(
    parameters: int, *, num_devices: int, input_bytes: int, output_bytes: int, dtype_bytes: int = 4
) -> CommLog:
    """The operations of one step of `nn.DataParallel`, seen from its master device.

    Every step scatters the batch, broadcasts all parameters, gathers the outputs, scatters their gradients, and reduces
    all parameter gradients. parameters: their number. input_bytes, output_bytes: of the full batch. The log's payload
    is what the master passes in or gets; `master_link_bytes` gives what crosses its link.
    """
    weights = parameters * dtype_bytes
    operations = [("scatter", input_bytes), ("broadcast", weights), ("gather", output_bytes)]
    operations += [("scatter", output_bytes), ("reduce", weights)]
    traffic = PredictedLog(num_devices, dtype_bytes=1)  # sizes are given in bytes
    for op, num_bytes in operations:
        traffic.add(op, (num_bytes,))
    return traffic.log


def master_link_bytes(log: CommLog) -> int:
    """Bytes that cross the master's link when it serves every other device itself, one after the other.

    Broadcast and reduce of P bytes cost P for each of the N - 1 others, scatter and gather cost (N-1)/N of P.
    """
    total = 0.0
    for event in log.events:
        others = len(event.group_ranks) - 1
        share = others if event.op in ("broadcast", "reduce") else others / (others + 1)
        total += event.payload_bytes * share
    return round(total)
