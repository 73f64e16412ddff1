"""Chapter 02: DataParallel on one screen gives the gradients of one process, and its pictures count every byte."""

import inspect

import pytest
import torch

from helpers.chapters import four_verbs
from helpers.chapters.data_parallel import (
    autocast_by_thread,
    fullest,
    link_scene,
    links_of_both_scene,
    replicas_with_kept_statistics,
    run_on_two_devices,
    weights_and_gradients_bytes,
)
from helpers.parallel.data_parallel import DataParallel
from helpers.parallel.shared.virtual_devices import VirtualDevices
from helpers.records import MemoryBreakdown
from helpers.workloads import GPT, GPTConfig, characters, token_loss
from tests.draw.scenes import texts


def gradients(model, forward, tokens, targets):
    model.zero_grad()
    token_loss(forward(tokens), targets).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.cpu("all devices are the CPU")
@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 12])
def test_the_core_file_gives_the_gradients_of_one_process(num_devices):
    assert "helpers" not in inspect.getsource(four_verbs)
    torch.manual_seed(0)
    model, (tokens, targets) = GPT(GPTConfig.tiny()).double(), characters().batch(0, 10, 32)
    alone = gradients(model, model, tokens, targets)
    devices = ["cpu"] * num_devices
    split = gradients(model, lambda rows: four_verbs.data_parallel(model, rows, devices), tokens, targets)
    torch.testing.assert_close(split, alone, rtol=0, atol=1e-10)


def test_a_replica_has_weights_of_its_own_whose_gradients_flow_to_the_master():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    replica = four_verbs.replicate(model, "cpu")
    assert replica is not model and replica[0] is not model[0] and replica[1].running_mean is not model[1].running_mean
    assert replica[0].weight is not model[0].weight and not replica[0].weight.is_leaf
    replica[0](torch.ones(1, 2)).sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.cpu("the simulated devices are parts of the CPU")
def test_the_pictures_count_the_bytes_of_a_step():
    model, (tokens, targets) = GPT(GPTConfig.tiny()), characters().batch(0, 8, 32)
    size = 4 * model.config.num_parameters
    with VirtualDevices(4) as devices:
        token_loss(DataParallel(model, devices)(tokens), targets).backward()
    everything = sum(devices.bytes_by_purpose().values())
    assert any(text.startswith("2 × 3 × ") for text in texts(link_scene(devices, size, everything)))
    with pytest.raises(AssertionError, match="to the byte"):
        link_scene(devices, size, everything + 1)
    assert any(text.endswith("= 3.0 P") for text in texts(links_of_both_scene(devices, size, size)))


def test_one_replica_keeps_its_statistics():
    assert replicas_with_kept_statistics(3) == 1


def test_the_fullest_device_is_named():
    def bar(parameters):
        return MemoryBreakdown(parameters=parameters, gradients=0, optimizer=0, buffers=0, activations=0, temporaries=0)

    assert fullest({"a: master": bar(2), "a: each other": bar(1)}) == "the master"
    assert fullest({"a: master": bar(1), "a: each other": bar(2)}) == "the last device"


class Masked(torch.nn.Linear):
    """A layer whose mask is a plain attribute, or a buffer."""

    def __init__(self, is_buffer):
        super().__init__(2, 2)
        if is_buffer:
            self.register_buffer("mask", torch.ones(2))
        else:
            self.mask = torch.ones(2)

    def forward(self, x):
        return super().forward(x) * self.mask


@pytest.mark.cpu("the simulated devices are parts of the CPU")
def test_a_plain_tensor_is_an_error_in_replica_1_and_a_buffer_is_not():
    text, answer = run_on_two_devices(Masked(is_buffer=False), torch.ones(4, 2))
    assert "register_buffer" in text and "replica 1 of 2" in text and answer == "replica 1 raises an error"
    assert run_on_two_devices(Masked(is_buffer=True), torch.ones(4, 2))[1] == "each replica uses its own copy"


@pytest.mark.cpu("autocast of the CPU")
def test_only_replicas_that_are_given_the_dtype_compute_in_it():
    dtypes = autocast_by_thread()
    assert dtypes["replicas in the lines of station B"] == dtypes["a bare thread"] == torch.float32
    assert dtypes["replicas of this course's DataParallel"] == torch.float16


def test_the_formula_of_the_masters_link():
    assert weights_and_gradients_bytes(400, 4) == 2 * 3 * 400
