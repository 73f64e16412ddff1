"""Virtual devices: homes, the log of copies, the count of bytes held, and the error for mixing."""

import gc
import threading

import pytest
import torch
from torch import nn

from helpers.parallel.shared.virtual_devices import DeviceCopy, Devices, VirtualDevices


def test_a_copy_is_logged_and_lives_elsewhere():
    devices = VirtualDevices(3)
    with devices:
        x = torch.ones(10)
        y = devices.copy(x, 0, 2, "test")
        assert (devices.home(x), devices.home(y)) == (0, 2)
    assert torch.equal(x, y) and y.data_ptr() != x.data_ptr()
    assert devices.copies == [DeviceCopy(0, 2, 40, "test")]
    assert [devices.sent(i) for i in range(3)] == [40, 0, 0]
    assert [devices.received(i) for i in range(3)] == [0, 0, 40]


def test_a_copy_to_the_same_device_is_the_same_tensor_and_free():
    devices, x = VirtualDevices(2), torch.ones(3)
    assert devices.copy(x, 1, 1, "test") is x and devices.copies == []


def test_results_live_where_their_inputs_live():
    devices = VirtualDevices(2)
    with devices:
        x = devices.copy(torch.ones(4), 0, 1, "test")
        assert devices.home((x * 2 + 1).view(2, 2)[0]) == 1
        x += 1
        assert devices.home(x) == 1


def test_mixing_devices_is_an_error_that_names_them():
    devices = VirtualDevices(2)
    with devices:
        x = torch.ones(4)
        y = devices.copy(x, 0, 1, "test")
        with pytest.raises(RuntimeError, match=r"aten::add.*\[0, 1\].*register_buffer"):
            x + y
        with pytest.raises(RuntimeError, match=r"\[0, 1\]"):
            x.copy_(y)


def test_numbers_are_welcome_everywhere():
    devices = VirtualDevices(2)
    scale = torch.tensor(3.0)
    with devices:
        y = devices.copy(torch.ones(4), 0, 1, "test")
        assert devices.home(y * scale) == 1


def test_what_is_made_in_a_thread_lives_on_its_device():
    devices, homes = VirtualDevices(3), {}

    def work(index):
        with devices.use(index):
            homes[index] = devices.home(torch.zeros(5))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    with devices:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert homes == {0: 0, 1: 1, 2: 2}


def test_a_tensor_made_from_numbers_lives_where_it_was_made():
    devices = VirtualDevices(2)
    with devices:
        with devices.use(1):
            there = torch.tensor([1.0, 2.0])
        assert (devices.home(there), devices.home(torch.tensor([1.0]))) == (1, 0)


def test_outside_the_block_copies_are_logged_and_nothing_is_checked():
    devices = VirtualDevices(2)
    x = torch.ones(4)
    with devices.use(1):
        x + devices.copy(x, 0, 1, "test") + torch.ones(4)
    assert len(devices.copies) == 1


def test_held_follows_life_and_death():
    devices = VirtualDevices(2)
    with devices:
        x = devices.copy(torch.ones(100), 0, 1, "test")
        assert devices.bytes_on(1) == 400
        view = x[:10]
        del x
        assert devices.bytes_on(1) == 400  # a view keeps the whole storage
        del view
        gc.collect()
        assert devices.bytes_on(1) == 0 and devices.peak(1) == 400
        devices.reset()
        assert devices.peak(1) == 0 and devices.copies == []


def test_a_copy_never_counts_on_its_source():
    devices = VirtualDevices(2)
    with devices:
        x = torch.ones(100)
        devices.reset()
        y = devices.copy(x, 0, 1, "test")
        assert devices.peak(0) == 400 and devices.peak(1) == 400
        del y


def test_backward_happens_where_forward_happened():
    devices = VirtualDevices(2)
    with devices:
        weight = nn.Parameter(torch.ones(6))
        there = devices.copy(weight.detach(), 0, 1, "test").requires_grad_()
        (there * there).sum().backward()
        assert devices.home(there.grad) == 1


def test_bytes_by_purpose():
    devices = VirtualDevices(2)
    for what in ("a", "b", "a"):
        devices.copy(torch.ones(2, dtype=torch.float64), 0, 1, what)
    assert devices.bytes_by_purpose() == {"a": 32, "b": 16}


@pytest.mark.parametrize("make", [lambda: VirtualDevices(0), lambda: Devices([])])
def test_no_devices_is_refused(make):
    with pytest.raises(ValueError, match="expected 1 or more|at least one device"):
        make()
