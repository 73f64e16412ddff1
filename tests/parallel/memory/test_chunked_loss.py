"""The chunked loss equals the plain one, with much less memory at its peak."""

import pytest
import torch
import torch.nn.functional as F

from helpers.observe.equality import assert_equal, state_of
from helpers.parallel.memory.chunked_loss import chunked_token_loss
from helpers.parallel.shared.autocast import autocast
from helpers.parallel.shared.virtual_devices import VirtualDevices
from helpers.workloads import GPT, GPTConfig, token_loss


def plain(hidden, weight, targets, reduction="mean", **_):
    return token_loss(F.linear(hidden, weight), targets, reduction)


def case(dtype=torch.float64, ignore=True):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 7, 6, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(11, 6, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, 11, (3, 7), generator=generator)
    if ignore:
        targets[0, :3] = targets[2, 6] = -100
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def result(loss_of, dtype=torch.float64, scale=1.0, ignore=True, **options):
    hidden, weight, targets = case(dtype, ignore)
    loss = loss_of(hidden, weight, targets, **options)
    (loss * scale).backward()
    return {"loss": loss.detach(), "hidden": hidden.grad, "weight": weight.grad}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("ignore", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("chunk_tokens", [1, 4, 7, 21, 100])
def test_loss_and_gradients_are_the_plain_ones(chunk_tokens, reduction, ignore, dtype):
    options = dict(dtype=dtype, scale=3.0, ignore=ignore, reduction=reduction)
    assert_equal(result(plain, **options), result(chunked_token_loss, chunk_tokens=chunk_tokens, **options))


def test_a_chunk_in_which_no_target_counts():
    hidden, weight, targets = case()
    targets[:] = -100
    targets[2, 5] = 4
    loss = chunked_token_loss(hidden, weight, targets, chunk_tokens=7)
    assert torch.allclose(loss, plain(hidden, weight, targets))
    loss.backward()
    assert hidden.grad[:2].abs().max() == 0 and hidden.grad[2, 5].abs().max() > 0


@pytest.mark.parametrize("tied", [True, False])
def test_a_gpt_with_its_own_head_learns_the_same(tied):
    states = []
    for chunked in (False, True):
        torch.manual_seed(0)
        model = GPT(GPTConfig.tiny(context=8, hidden=16, tied=tied)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.randint(0, 68, (2, 8))
        for _ in range(3):
            optimizer.zero_grad()
            if chunked:
                loss = chunked_token_loss(model.features(tokens), model.head.weight, tokens, chunk_tokens=5)
            else:
                loss = token_loss(model(tokens), tokens)
            loss.backward()
            optimizer.step()
        states.append(state_of(model))
    assert_equal(*states, atol={"*.key.bias*": 1e-12})  # zero in theory


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_what_needs_no_gradient_gets_none(frozen):
    hidden, weight, targets = case()
    {"hidden": hidden, "weight": weight}[frozen].requires_grad_(False)
    chunked_token_loss(hidden, weight, targets, chunk_tokens=4).backward()
    assert (hidden.grad is None, weight.grad is None) == (frozen == "hidden", frozen == "weight")


def test_without_a_graph_it_is_the_loss():
    hidden, weight, targets = case()
    with torch.no_grad():
        assert torch.allclose(chunked_token_loss(hidden, weight, targets), plain(hidden, weight, targets))


def test_a_second_backward_gives_the_same_again():
    hidden, weight, targets = case()
    loss = chunked_token_loss(hidden, weight, targets, chunk_tokens=4)
    loss.backward(retain_graph=True)
    once = weight.grad.clone()
    loss.backward()
    assert torch.equal(weight.grad, 2 * once)


def peak(loss_of, n, h, v):
    """Bytes at the peak of forward and backward, beyond what is there before: hidden, weight and targets."""
    devices = VirtualDevices(1)
    with devices:
        hidden, weight, targets = torch.randn(n, h), torch.randn(v, h), torch.zeros(n, dtype=torch.int64)
        hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
        before = devices.bytes_on(0)
        loss_of(hidden, weight, targets).backward()
    return devices.peak(0) - before


def test_the_peak_is_two_chunks_of_logits_and_the_gradients():
    n, h, v, chunk = 512, 8, 1000, 64
    logits, gradients = 4 * n * v, 4 * (n * h + v * h)
    assert 3 * logits <= peak(plain, n, h, v) <= 3.05 * logits + gradients
    chunked = peak(lambda *given: chunked_token_loss(*given, chunk_tokens=chunk), n, h, v)
    assert 2 * logits * chunk / n <= chunked <= 2.05 * logits * chunk / n + 3 * gradients


@pytest.mark.parametrize("open_autocast", [autocast, lambda dtype: torch.autocast("cpu", dtype)])
def test_under_autocast_within_the_rounding_of_its_16_bits(open_autocast):
    results = []
    for loss_of in (plain, chunked_token_loss):
        with open_autocast(torch.bfloat16):
            hidden, weight, targets = case(torch.float32)
            loss = loss_of(hidden, weight, targets)
        loss.backward()
        assert loss.dtype == hidden.grad.dtype == weight.grad.dtype == torch.float32
        results.append({"loss": loss.detach(), "hidden": hidden.grad, "weight": weight.grad})
    assert_equal(*results, rtol=2**-6)


def test_float16_gradients_of_many_tokens_do_not_vanish():
    """Divided by 10**7 tokens first, a gradient of about 1 would be below 2**-25 and round to zero in float16."""
    hidden, weight, targets = case(torch.float16)
    loss = chunked_token_loss(hidden, weight, targets, reduction="sum") / 1e8
    (loss * 1e8).backward()
    reference = result(plain, torch.float64, reduction="sum")
    assert_equal({"w": reference["weight"].float()}, {"w": weight.grad.float()}, rtol=2e-2)


@pytest.mark.parametrize("changes, words", [
    (dict(chunk_tokens=0), "chunk_tokens=0: expected 1 or more"),
    (dict(reduction="none"), "known are 'mean' and 'sum'"),
    (dict(targets=torch.zeros(3, 6, dtype=torch.int64)), r"expected \(B, T, h\), \(V, h\) and \(B, T\)"),
    (dict(weight=torch.zeros(11, 5)), r"weight \(11, 5\)"),
])  # fmt: skip
def test_bad_input_gets_a_sentence(changes, words):
    hidden, weight, targets = case()
    with pytest.raises(ValueError, match=words):
        chunked_token_loss(**{**dict(hidden=hidden, weight=weight, targets=targets), **changes})
