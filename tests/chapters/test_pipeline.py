"""Chapter 06's runs on two ranks: each finds what it is meant to find, and notices what is wrong."""

import math

import pytest
import torch

from helpers.chapters import pipeline
from helpers.chapters.pipeline import (
    equal_to_one_process,
    exchange_between_two_ranks,
    exchange_by_blocking_sends,
    messages_of_a_step,
    peak_microbatches,
    run_as_chain,
    torch_equal_to_one_process,
)
from helpers.predict.time.pipeline import simulate
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
    report, waits = exchange_by_blocking_sends(ranks)
    assert report.startswith("every rank waits for another one") and waits == "both wait in a send"


def test_steps_are_compared_in_the_words_of_the_questions():
    short, long = ({"forward": 1.0, "backward_input": 1.0, "backward_weight": 1.0, "send": send} for send in (0.0, 1.0))
    gpipe_step, same, slow = (
        simulate(order(4, 8), **times) for order, times in ((gpipe, short), (one_f_one_b, short), (one_f_one_b, long))
    )
    assert pipeline.bubble_beside_gpipe(gpipe_step, same) == "as large as GPipe's"
    assert pipeline.bubble_beside_gpipe(gpipe_step, slow) == "larger than GPipe's"
    assert pipeline.bubble_beside_gpipe(slow, same) == "smaller than GPipe's"
    assert pipeline.length_beside_h1(same, gpipe_step) == "exactly as long"
    assert pipeline.length_beside_h1(same, slow) == "longer than ZB-H1's"


@pytest.mark.parametrize(
    ("losses", "seen"),
    [
        ([4.0, 3.0], "nothing: the loss falls"),
        ([4.0, 4.0], "the loss stays flat"),
        ([4.0, math.nan], "the loss becomes NaN"),
    ],
)
def test_what_the_loss_of_a_tied_model_shows(losses, seen):
    assert pipeline.TiedRun(apart=[0.0], losses=losses).what_is_seen == seen


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
