"""Cutting models: the pieces in a row are the model, and the cuts are the best ones."""

from itertools import combinations

import pytest
import torch
from torch import nn

from helpers.parallel.pipeline.partition import FunctionLayer, balanced, layers_of, partition
from helpers.workloads import GPT, MLP, GPTConfig, SmallResNet

MODELS = {
    "gpt": (lambda: GPT(GPTConfig.tiny()), lambda: torch.randint(0, 68, (2, 8))),
    "mlp": (lambda: MLP([8, 16, 16, 4]), lambda: torch.randn(3, 8)),
    "resnet": (lambda: SmallResNet(width=4), lambda: torch.randn(2, 1, 8, 8)),
    "sequential": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), lambda: torch.randn(3, 4)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_pieces_in_a_row_are_the_model_with_its_own_weights(kind):
    build, draw = MODELS[kind]
    model, x = build().eval(), draw()
    for num_stages in range(1, len(layers_of(model)) + 1):
        pieces = partition(model, num_stages)
        assert len(pieces) == num_stages
        assert torch.equal(nn.Sequential(*pieces)(x), model(x))
        assert {p for piece in pieces for p in piece.parameters()} == set(model.parameters())


def test_children_in_a_row_are_not_the_resnet():
    """The bug of old posts: relu and the mean over pixels stand in forward, between the children."""
    model = SmallResNet(width=4)
    with pytest.raises(NotImplementedError):
        nn.Sequential(*model.children())(torch.randn(2, 1, 8, 8))


def cost_of(costs, sizes):
    pieces = iter(costs)
    return max(sum(next(pieces) for _ in range(size)) for size in sizes)


def test_no_other_cut_is_better():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        costs = torch.randint(1, 20, (7,), generator=generator).tolist()
        for num_stages in range(1, 8):
            others = [
                [b - a for a, b in zip((0, *cuts), (*cuts, 7), strict=True)]
                for cuts in combinations(range(1, 7), num_stages - 1)
            ]
            assert cost_of(costs, balanced(costs, num_stages)) == min(cost_of(costs, sizes) for sizes in others)


def test_bad_cuts_get_a_sentence():
    with pytest.raises(ValueError, match="3 layers cannot be divided into 4 stages.*choose 1 to 3"):
        balanced([1, 1, 1], 4)
    with pytest.raises(ValueError, match="partition got 2 costs for 1 layers"):
        partition([nn.Linear(2, 2)], 1, [1.0, 2.0])
    with pytest.raises(ValueError, match="cannot split a Bilinear"):
        layers_of(nn.Bilinear(1, 1, 1))


def test_a_piece_holds_its_modules():
    layer = nn.Linear(2, 2)
    piece = FunctionLayer(lambda x: layer(x).mean(0), layer=layer)
    assert list(piece.parameters()) == list(layer.parameters())
    assert piece(torch.ones(3, 2)).shape == (2,)
