"""Copies count once: gradients of shared heads, tied parameters, whole states."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.observe.comms import record_comms
from helpers.parallel.shared.placement import placements_of
from helpers.parallel.tensor_parallel.splits import (
    even_split,
    heads_split,
    place_unsharded_parameters,
    restore_tied_parameters,
    shard_parameter,
    sum_gradient_over_replicas,
)


def test_gradients_of_copies_are_added_among_their_holders_only(ranks):
    def gradients():
        split = heads_split(4, 4, 2)  # two heads of 2: ranks 0 and 1 hold the first, 2 and 3 the second
        found = []
        for whole in (nn.Parameter(torch.arange(8.0).view(4, 2)), nn.Parameter(torch.arange(4.0))):
            part = shard_parameter(whole, split, None)
            with record_comms() as recorder:
                same = sum_gradient_over_replicas(part, split, None)
                (same * 10 ** dist.get_rank()).sum().backward()
            assert torch.equal(same, part) and placements_of(part)["tp"].copies == 2
            assert [event.payload_bytes for event in recorder.log.events] == [whole.numel() * 4]
            found.append(part.grad.unique().tolist())
        return found

    assert ranks.run(gradients) == [[[11.0]] * 2] * 2 + [[[1100.0]] * 2] * 2


def test_parts_of_ones_own_and_missing_biases_pass_through(ranks):
    def through():
        part = torch.ones(2, requires_grad=True)
        split = even_split(4, 2)
        return sum_gradient_over_replicas(part, split, None) is part, sum_gradient_over_replicas(
            None, heads_split(2, 2, 2), None
        )

    assert ranks[:2].run(through) == [(True, None)] * 2


class Half(nn.Module):
    def __init__(self, weight, split):
        super().__init__()
        self.weight, self.splits = nn.Parameter(weight.detach()[:1].clone()), {"weight": split}


def tied():
    model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.Linear(2, 4, bias=False), nn.Linear(2, 4))
    model[1].weight = model[0].weight
    return model


def test_what_was_tied_is_tied_again():
    model, split = tied(), even_split(4, 4)
    new = [Half(model[0].weight, split), Half(model[0].weight, split)]
    restore_tied_parameters(model, zip([model[0], model[1]], new, strict=True))
    assert new[0].weight is new[1].weight


def test_owners_that_part_are_an_error():
    model, split = tied(), even_split(4, 4)
    with pytest.raises(ValueError, match="0.weight and 1.weight are one parameter"):
        restore_tied_parameters(model, [(model[0], Half(model[0].weight, split))])
    with pytest.raises(ValueError, match="give both the same word"):
        halves = Half(model[0].weight, split), Half(model[0].weight, even_split(4, 2))
        restore_tied_parameters(model, zip([model[0], model[1]], halves, strict=True))


def test_what_is_no_part_is_whole_everywhere(ranks):
    def marked():
        layer = nn.Linear(4, 4)
        layer.weight = shard_parameter(layer.weight, even_split(4, 2), None)
        place_unsharded_parameters(layer, None)
        return [placements_of(parameter)["tp"].copies for parameter in (layer.weight, layer.bias)]

    assert ranks[:2].run(marked) == [[1, 2]] * 2
