"""Beside the learner's function: what it did to the caller's arguments, and cases that take turns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers.grading import run_on_ranks
from helpers.grading.run_on_ranks import ObservedFunction

TASK = SimpleNamespace(name="f", arguments=("x", "others"), must_not_change=("x", "others"), returns_new_memory=True)


def moved(x, others):
    x += 1


def replaced(x, others):
    others[0] = others[0].clone()


def emptied(x, others):
    others.clear()


def marked(x, others):
    x.requires_grad_()


@pytest.mark.parametrize(
    ("function", "changed"), [(moved, "x"), (replaced, "others"), (emptied, "others"), (marked, "x")]
)
def test_what_is_changed_is_seen(function, changed):
    observed = ObservedFunction(function, TASK)
    observed(torch.ones(3), [torch.ones(2)])
    assert observed.calls[0]["changed"] == [changed]


def test_what_only_looks_leaves_no_trace():
    observed = ObservedFunction(lambda x, others: x.clone(), TASK)
    observed(torch.tensor([1.0, float("nan")]), [torch.ones(2)])
    assert observed.calls[0] == {"call": "f(float32 2, [float32 2])", "changed": [], "shared": []}


@pytest.mark.parametrize("result", [lambda x: x, lambda x: [x[:1]], lambda x: {"a": x.view(-1, 1)}])
def test_a_result_in_the_memory_of_an_argument_is_seen(result):
    observed = ObservedFunction(lambda x, others: result(x), TASK)
    observed(torch.ones(3), [])
    assert observed.calls[0]["shared"] == ["x"]


def test_a_module_is_as_it_was_only_with_the_same_parameters():
    model = nn.Linear(2, 2)
    kept = run_on_ranks.snapshot(model)
    assert run_on_ranks.is_unchanged(kept, model)
    model.weight = nn.Parameter(model.weight.detach().clone())
    assert not run_on_ranks.is_unchanged(kept, model)


class Steps:
    """An Acting that notes when it was advanced."""

    def __init__(self, name: str, count: int, order: list[str]):
        self.name, self.left, self.order = name, count, order

    def advance(self) -> bool:
        self.order.append(self.name)
        self.left -= 1
        return self.left > 0


def test_the_first_two_take_turns_and_the_others_follow():
    order: list[str] = []
    run_on_ranks.run_alternating([Steps("a", 3, order), Steps("b", 1, order), Steps("c", 2, order)])
    assert order == ["a", "b", "a", "a", "c", "c"]
