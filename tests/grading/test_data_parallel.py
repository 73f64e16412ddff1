"""Lab 02: verdicts count devices, and its formula for memory is what pretended devices hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.grading import grade
from helpers.grading.data_parallel.memory import device_bytes
from helpers.parallel.data_parallel import gather, parallel_apply, replicate, scatter
from helpers.parallel.shared.virtual_devices import VirtualDevices


def dropping(batch, num_devices):
    """Right for one device, and rows are missing on more."""
    size = len(batch["x"] if isinstance(batch, dict) else batch) // num_devices
    return [batch] if num_devices == 1 else [batch[:size]] * num_devices


def test_a_verdict_counts_devices_and_blames_one(ranks):
    verdict = grade("02.gather", lambda outputs, send: torch.cat(outputs), ranks=ranks)
    assert verdict.text("en").splitlines()[1].startswith("  with 2 devices (gather([float64 ")
    assert "what crosses in forward is 0 B, expected 1 → 0: " in verdict.text("en")
    assert "passed: 1 device; failed: 2, 3, 4 and 5 devices" in verdict.text("en")
    assert "通过：1 个设备；未通过：2、3、4、5 个设备" in verdict.text("zh")
    failure = grade("02.scatter", dropping, ranks=ranks).text("en")
    assert "raised " in failure and "rank" not in failure


@pytest.mark.parametrize(("num_devices", "batch"), [(1, 5), (2, 5), (3, 7), (4, 10), (4, 5), (4, 3)])
def test_memory_is_what_devices_hold(num_devices, batch):
    """A linear layer and tanh keep weights, input and outputs; the replicas are held until they are counted."""
    with VirtualDevices(num_devices) as devices:
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh())
        x = torch.ones(batch, 6)
        devices.place(model.parameters(), 0)
        shares = scatter([x], devices)
        replicas = replicate(model, devices, len(shares))
        outputs = parallel_apply(replicas, shares, devices)
        gathered = gather(outputs, devices) if num_devices > 1 else outputs[0]
        now = [devices.bytes_on(device) for device in range(num_devices)]
    sizes = {"num_parameters": 28, "batch": batch, "input_bytes": 24, "output_bytes": 16}
    expected = device_bytes(num_devices, **sizes)
    assert now == [one["parameters"] + one["input"] + one["outputs"] for one in expected]
    assert gathered.shape == (batch, 4)
