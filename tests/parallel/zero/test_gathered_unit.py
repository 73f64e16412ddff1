"""Which module gathers which parameter."""

import torch
from torch import nn

from helpers.parallel.zero.gathered_unit import blocks_of, group_by_unit
from helpers.workloads import GPT, MLP, GPTConfig


def named(model, wrap=None):
    names = {module: name for name, module in model.named_modules()}
    return [(names[home], [use.names for use in uses]) for home, uses in group_by_unit(model, wrap)]


def test_blocks_are_units_and_what_is_left_is_the_rest():
    model = GPT(GPTConfig.tiny())
    found = dict(named(model))
    assert list(found) == ["", "blocks.0", "blocks.1"]
    assert [names[0] for names in found[""]] == [
        "token_embedding.weight",
        "position_embedding.weight",
        "final_norm.weight",
        "final_norm.bias",
    ]
    assert found[""][0] == ["token_embedding.weight", "head.weight"]  # tied: once, under both names
    assert len(found["blocks.0"]) == 16


def test_a_list_in_a_list_and_a_sequential_are_looked_into():
    inner = nn.ModuleList([nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))])
    model = nn.Sequential(nn.Linear(1, 1), nn.ModuleDict({"a": nn.ModuleList(inner)}))
    assert list(blocks_of(model)) == [model[0], inner[0], inner[1]]


def test_what_two_units_share_belongs_to_the_rest():
    model = MLP([3, 3, 3])
    model.layers[1].weight = model.layers[0].weight
    assert named(model) == [
        ("", [["layers.0.weight", "layers.1.weight"]]),
        ("layers.0", [["layers.0.bias"]]),
        ("layers.1", [["layers.1.bias"]]),
    ]


def test_frozen_parameters_and_other_dtypes_travel_apart():
    model = MLP([3, 3, 3])
    model.layers[0].bias.requires_grad_(False)
    model.layers[1].bias = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    assert [len(uses) for _, uses in named(model)] == [1, 1, 1, 1]


def test_units_by_class_or_by_rule_and_the_innermost_counts():
    model = GPT(GPTConfig.tiny())
    by_class = {home for home, _ in named(model, [nn.Linear])}
    assert "blocks.0.attention.query" in by_class and "blocks.0.attention_norm" not in by_class
    assert {home for home, _ in named(model, nn.Linear)} == by_class
    assert {home for home, _ in named(model, lambda module: False)} == {""}


def test_a_module_that_stands_in_two_places_is_one_unit():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert named(model) == [("0", [["0.weight", "2.weight"], ["0.bias", "2.bias"]])]
