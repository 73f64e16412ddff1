"""What parameters say of themselves: kept with their parts, told to other processes, and refused where it cannot be."""

import pickle

import pytest
import torch
from torch import nn

from helpers.parallel.shared.placement import Placement, axes_of, place, placements_of


def lies(axis, *ranks, copies=1):
    return Placement(axis, ranks, copies, None)


def test_a_part_keeps_the_other_axes_of_its_parameter():
    parameter = place(nn.Parameter(torch.ones(4)), lies("tp", 0, 1, copies=2))
    part = place(parameter[:2].detach(), lies("dp", 0, 2), like=parameter)
    assert placements_of(part) == {"tp": lies("tp", 0, 1, copies=2), "dp": lies("dp", 0, 2)}
    assert placements_of(parameter) == {"tp": lies("tp", 0, 1, copies=2)}
    assert placements_of(torch.ones(1)) == {}


def test_what_is_said_again_counts():
    parameter = place(nn.Parameter(torch.ones(4)), lies("pp", 0, 1))
    assert placements_of(place(parameter, lies("pp", 0, 1, copies=2))) == {"pp": lies("pp", 0, 1, copies=2)}


def test_two_axes_on_the_same_ranks_get_a_sentence():
    parameter = place(nn.Parameter(torch.ones(4)), lies("tp", 0, 1))
    with pytest.raises(
        ValueError, match=r"ranks \[0, 1\] of tp cannot lie on the ranks \[0, 1, 2, 3\] of dp: .* its own"
    ):
        place(parameter, lies("dp", 0, 1, 2, 3))


def test_a_gradient_of_which_nobody_said_how_it_lies_gets_a_sentence():
    """Such as an adapter that was added after the model was cut."""
    cut, added = place(nn.Parameter(torch.ones(4)), lies("tp", 0, 1)), nn.Parameter(torch.ones(2))
    with pytest.raises(
        ValueError, match=r"a parameter of shape \(2,\) has no placement on the ranks \[0, 1\] of tp.*replicated"
    ):
        axes_of([(cut, placements_of(cut)), (added, placements_of(added))])
    assert axes_of([(cut, placements_of(cut)), (None, {})]) == [lies("tp", 0, 1)]  # a frozen one is not counted


def test_an_axis_of_two_groups_gets_a_sentence():
    with pytest.raises(ValueError, match=r"two groups of tp, the ranks \[0, 1\] and \[2, 3\]"):
        axes_of([(None, {"tp": lies("tp", 0, 1)}), (None, {"tp": lies("tp", 2, 3)})])


def test_it_travels_without_its_group(ranks):
    def sent():
        return place(nn.Parameter(torch.ones(2)), Placement.replicated("tp", None))

    for parameter in ranks[:2].run(sent):
        assert placements_of(parameter) == {"tp": lies("tp", 0, 1, copies=2)}
    assert pickle.loads(pickle.dumps(lies("tp", 0))).group is None
