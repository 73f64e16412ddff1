"""What a learner's function returned, as plain data."""

from __future__ import annotations

import torch

from helpers.grading.plain_data import as_plain_data


def test_plain_keeps_data_and_names_the_rest():
    value = {"a": [1, 2.5, "text", None, True], 3: (torch.ones(2, requires_grad=True),), "odd": object()}
    kept = as_plain_data(value)
    assert kept["a"] == [1, 2.5, "text", None, True]
    assert not kept["3"][0].requires_grad
    assert kept["odd"] == "<object>"
