"""DataParallel on real GPUs: two replicas that share one, and N of them beside torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.parallel.data_parallel import DataParallel
from helpers.parallel.shared.devices import Devices
from helpers.ranks.limits import num_gpus
from helpers.workloads import GPT, GPTConfig, characters, token_loss


def gradients(wrap) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny()).double().to("cuda:0")
    tokens, targets = (tensor.to("cuda:0") for tensor in characters(2000).batch(0, 8, 16))
    token_loss(wrap(model)(tokens), targets).backward()
    return [parameter.grad for parameter in model.parameters()]


def assert_same(expected, actual):
    assert all((a - b).norm() <= 1e-10 * a.norm() + 1e-13 for a, b in zip(expected, actual, strict=True))


def test_two_replicas_on_one_gpu_equal_one_process():
    assert_same(gradients(lambda model: model), gradients(lambda model: DataParallel(model, Devices(["cuda:0"] * 2))))


def test_threads_get_autocast_with_its_dtype():
    model = nn.Linear(4, 4, device="cuda:0")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = DataParallel(model, Devices(["cuda:0"] * 2))(torch.ones(4, 4, device="cuda:0"))
    assert out.dtype == torch.bfloat16


def test_equal_to_torch_on_several_gpus():
    if num_gpus() < 2:
        pytest.skip("needs two GPUs")
    names = [f"cuda:{index}" for index in range(num_gpus())]
    assert_same(gradients(nn.DataParallel), gradients(lambda model: DataParallel(model, Devices(names))))
