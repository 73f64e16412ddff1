"""Recomputation on one screen: it trains like a model that keeps everything, and like PyTorch's."""

import runpy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from helpers.grading import grade
from helpers.observe.equality import assert_equal, state_of
from helpers.observe.memory import record_memory
from helpers.parallel.memory import chunked_loss
from helpers.parallel.memory.recomputation import recompute
from helpers.workloads import GPT, GPTConfig, characters, token_loss
from tests.standalone import standalone


def trained(run: Callable | None = None, steps: int = 3) -> dict[str, Tensor]:
    """Losses, weights and gradients of a GPT with dropout in float64, whose blocks run as `run(block, x)`."""
    torch.manual_seed(0)
    gpt = GPT(GPTConfig.tiny(dropout=0.2)).double()
    if run:
        for block in gpt.blocks:
            block.forward = partial(run, block.forward)
    optimizer, losses = torch.optim.AdamW(gpt.parameters()), []
    for step in range(steps):
        tokens, targets = characters().batch(step, 4, 16)
        optimizer.zero_grad()
        loss = token_loss(gpt(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses)} | state_of(gpt)


def test_it_trains_like_a_model_that_keeps_everything_and_like_pytorchs():
    plain = trained()
    assert_equal(plain, trained(recompute))
    assert_equal(plain, trained(partial(torch_checkpoint, use_reentrant=False)))


def test_other_masks_are_noticed():
    """Without the state of the generator the gradients are those of another network."""

    def forgets(function: Callable, x: Tensor) -> Tensor:
        return torch_checkpoint(function, x, use_reentrant=False, preserve_rng_state=False)

    with pytest.raises(AssertionError):
        assert_equal(trained(), trained(forgets))


def test_only_the_inputs_are_kept():
    def kept(run: Callable) -> int:
        torch.manual_seed(0)
        gpt = GPT(GPTConfig.tiny())
        for block in gpt.blocks:
            block.forward = partial(run, block.forward)
        tokens, targets = characters().batch(0, 4, 16)
        with record_memory(gpt) as recorder:
            loss = token_loss(gpt(tokens), targets)
            recorder.mark("forward")
            loss.backward()
        return recorder.at("forward").activations

    assert kept(recompute) < kept(lambda function, x: function(x)) / 2


def test_a_copy_of_the_chunked_loss_alone_passes_the_labs_check(ranks, tmp_path):
    path = standalone(chunked_loss, tmp_path)

    def chunked_cross_entropy(x, weight, targets, chunk):
        return runpy.run_path(path)["chunked_token_loss"](x, weight, targets, chunk_tokens=chunk)

    verdict = grade("05.chunked", chunked_cross_entropy, ranks=ranks[:1])
    assert verdict.passed, verdict
