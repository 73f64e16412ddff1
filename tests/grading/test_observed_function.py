"""What a call of a learner's function changes is observed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers.grading.observed_function import ObservedFunction, is_unchanged, snapshot

TASK = SimpleNamespace(name="f", arguments=("x", "others"), must_not_change=("x", "others"), returns_new_memory=True)


def moved(x, others):
    x += 1


def replaced(x, others):
    others[0] = others[0].clone()


def marked(x, others):
    x.requires_grad_()


CHANGES = {moved: "x", replaced: "others", marked: "x", lambda x, others: others.clear(): "others"}


@pytest.mark.parametrize(("function", "changed"), CHANGES.items())
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
    kept = snapshot(model)
    assert is_unchanged(kept, model)
    model.weight = nn.Parameter(model.weight.detach().clone())
    assert not is_unchanged(kept, model)
