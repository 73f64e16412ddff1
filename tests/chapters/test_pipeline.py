"""Chapter 06's runs on two ranks: each finds what it is meant to find, and notices what is wrong."""

import pytest
import torch

from helpers.chapters import pipeline
from helpers.chapters.pipeline import (
    equal_to_one_process,
    exchange_between_two_ranks,
    messages_of_a_step,
    peak_microbatches,
    run_as_chain,
    torch_equal_to_one_process,
)
from helpers.schedules import gpipe, interleaved, one_f_one_b, zb_h1


@pytest.mark.parametrize("kind", ["layers", "gpt", "cnn"])
def test_ours_equals_one_process_with_its_norm(ranks, kind):
    assert equal_to_one_process(ranks[:2], zb_h1(2, 4), kind).startswith("equal: ")


def test_torch_runs_our_schedules(ranks):
    assert torch_equal_to_one_process(ranks[:2], interleaved(4, 4, 2)).startswith("equal: 16 tensors")


def test_a_gradient_that_one_rank_has_otherwise_is_found():
    expected = {"a": torch.ones(2), "b": torch.ones(2)}
    with pytest.raises(AssertionError, match="b differs"):
        pipeline._compare(expected, [{"a": torch.ones(2)}, {"b": torch.zeros(2)}])


def test_peaks_and_messages_are_those_of_the_schedule(ranks):
    assert peak_microbatches(ranks[:2], gpipe(2, 4)) == [4, 4]
    assert peak_microbatches(ranks[:2], one_f_one_b(2, 4)) == [2, 1]
    assert messages_of_a_step(ranks[:2], interleaved(4, 4, 2)) == 2 * 4 * 3


def test_blocking_sends_wait_for_each_other_and_posted_ones_do_not(ranks):
    assert exchange_between_two_ranks(ranks, "isend").endswith("[2, 2]")
    assert exchange_between_two_ranks(ranks, "send").startswith("every rank waits for another one")


class Net(torch.nn.Module):
    def __init__(self, width: int, act):
        super().__init__()
        self.first, self.second, self.act = torch.nn.Linear(8, 8), torch.nn.Linear(width, 8), act

    def forward(self, x):
        return self.second(self.act(self.first(x))[:, : self.second.in_features])


def test_a_chain_of_children_loses_what_forward_does():
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    outcomes = [
        run_as_chain(Net(8, torch.relu), x),
        run_as_chain(Net(8, lambda y: y), x),
        run_as_chain(Net(4, torch.relu), x),
    ]
    assert outcomes == ["other numbers, and no error", "the same output", "an error"]
