"""DataParallel on real GPUs: two replicas that share one, and N of them beside torch's own."""

import pytest
import torch
from torch import nn

from helpers.parallel.data_parallel import DataParallel
from helpers.parallel.shared.virtual_devices import Devices
from helpers.workloads import GPT, GPTConfig, characters, token_loss
from tests.gpu.device import FIRST, KIND, NUM_GPUS


def gradients(wrap) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny()).double().to(FIRST)
    tokens, targets = (tensor.to(FIRST) for tensor in characters(2000).batch(0, 8, 16))
    token_loss(wrap(model)(tokens), targets).backward()
    return [parameter.grad for parameter in model.parameters()]


def assert_same(expected, actual):
    assert all((a - b).norm() <= 1e-10 * a.norm() + 1e-13 for a, b in zip(expected, actual, strict=True))


def test_two_replicas_on_one_gpu_equal_one_process():
    assert_same(gradients(lambda model: model), gradients(lambda model: DataParallel(model, Devices([FIRST] * 2))))


def test_threads_get_autocast_with_its_dtype():
    model = nn.Linear(4, 4, device=FIRST)
    with torch.autocast(KIND, dtype=torch.bfloat16):
        out = DataParallel(model, Devices([FIRST] * 2))(torch.ones(4, 4, device=FIRST))
    assert out.dtype == torch.bfloat16


@pytest.mark.cuda("a process has one card, and torch scatters in CUDA's C++")
def test_equal_to_torch_on_several_gpus():
    if NUM_GPUS < 2:
        pytest.skip("needs two GPUs")
    names = [f"{KIND}:{index}" for index in range(NUM_GPUS)]
    assert_same(gradients(nn.DataParallel), gradients(lambda model: DataParallel(model, Devices(names))))
