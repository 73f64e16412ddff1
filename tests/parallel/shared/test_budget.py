"""The pretended GPU with a limit: what does not fit raises, in words, and leaves everything else as it was."""

import threading

import pytest
import torch
from torch import nn

from helpers.parallel.shared.virtual_devices import GPU, HOST, Budget, OutOfBudget


def test_what_fits_runs_and_what_does_not_raises_with_every_number():
    with Budget(10_000) as budget:
        kept = torch.zeros(2000)
        with pytest.raises(OutOfBudget) as caught:
            torch.zeros(600)
        torch.zeros(500)  # this still fits, and is gone at once
        assert budget.bytes_on(GPU) == 8000
        del kept
    text = str(caught.value)
    assert "allocate 2.40 kB" in text and "holds 8.00 kB of its 10.0 kB, so 2.00 kB are free" in text
    assert "smaller micro-batches" in text and "recompute_blocks" in text


def test_it_is_an_out_of_memory_error_of_torchs():
    with Budget(100), pytest.raises(torch.OutOfMemoryError):
        torch.zeros(100)


def test_to_the_byte():
    with Budget(400):
        torch.zeros(100)
    with Budget(399), pytest.raises(OutOfBudget):
        torch.zeros(100)


def test_freed_memory_can_be_used_again():
    with Budget(400) as budget:
        for _ in range(3):
            x = torch.zeros(100)
            del x
        assert budget.peak(GPU) == 400


def test_what_only_a_cycle_keeps_is_collected_before_it_raises():
    with Budget(400):
        cycle = [torch.zeros(100)]
        cycle.append(cycle)
        del cycle
        assert torch.zeros(100).shape == (100,)


def test_the_host_has_no_limit():
    with Budget(400) as budget:
        x = torch.zeros(100)
        copies = [budget.copy(x, GPU, HOST, "test") for _ in range(5)]
        with budget.use(HOST):
            made_there = torch.zeros(1000)
        assert budget.bytes_on(HOST) == 5 * 400 + 4000 and budget.bytes_on(GPU) == 400
        with pytest.raises(OutOfBudget):
            budget.copy(copies[0], HOST, GPU, "test")
        del made_there


def test_views_and_changes_in_place_are_free():
    with Budget(400) as budget:
        x = torch.ones(100)
        x.view(10, 10)[0].mul_(3)
        assert budget.peak(GPU) == 400


def step(model, rows, budget):
    with budget:
        model.zero_grad()
        model(torch.ones(rows, 64)).square().mean().backward()


def test_after_the_error_nothing_has_changed_and_a_smaller_batch_works():
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())])
    before = [parameter.clone() for parameter in model.parameters()]
    budget = Budget(250_000, model.parameters())
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert budget.bytes_on(GPU) == weights
    with pytest.raises(OutOfBudget):
        step(model, 256, budget)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    model.zero_grad()
    assert budget.bytes_on(GPU) == weights
    step(model, 16, budget)
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.zeros(10**6)  # outside, nothing is limited


def test_it_raises_in_backward_too():
    model = nn.Linear(1000, 1000, bias=False)
    with Budget(4_100_000, model.parameters()):
        loss = model(torch.ones(1, 1000)).sum()
        with pytest.raises(OutOfBudget):
            loss.backward()  # the gradient is as large as the weight
    assert model.weight.grad is None


def test_a_tensor_given_twice_counts_once():
    x = torch.zeros(100)
    assert Budget(400, [x, x, x[:50]]).bytes_on(GPU) == 400


def test_bad_budgets_get_a_sentence():
    with pytest.raises(ValueError, match="expected a number of bytes above 0"):
        Budget(0)
    with pytest.raises(ValueError, match=r"Budget\(399 B\) is below what the device holds already: 400 B in 1 tensors"):
        Budget(399, [torch.zeros(100)])


def test_a_tensor_on_the_meta_device_weighs_nothing():
    with Budget(100) as budget:
        shape = torch.empty(1000, 1000, device="meta") + 1
        real = torch.zeros(10)
    assert shape.is_meta and budget.bytes_on(0) == real.nbytes


def test_a_tensor_that_another_thread_still_holds_for_a_moment_is_waited_for():
    """As gloo's thread holds that of a message whose wait() is over."""
    with Budget(1_000) as budget:
        message = [torch.zeros(200)]
        asked = threading.Event()

        def let_go():
            asked.wait()
            message.clear()

        thread = threading.Thread(target=let_go)
        thread.start()
        forget = budget._forget_freed
        budget._forget_freed = lambda: (asked.set(), forget())
        assert torch.zeros(200).sum() == 0
        thread.join()
