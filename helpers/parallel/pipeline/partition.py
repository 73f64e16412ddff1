"""Cutting a model into stages: a chain of layers first, then pieces of it.

    layers_of      a model as a chain of layers, each a module that maps one tensor to one tensor
    balanced       where to cut, so that the slowest piece is as fast as it can be
    measured_costs seconds of each layer, forward, on a sample
    partition      the pieces, as modules

What old posts stumble over: `nn.Sequential(*model.children())` is not the model. What stands between the layers in
`forward` (a relu, a mean over pixels, a reshape) is lost. A chain has to say it, as `layers_of` does below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.schedules import balanced
from helpers.workloads import GPT, MLP, SmallResNet


class FunctionLayer(nn.Module):
    """Modules, and a function of one tensor that uses them. The modules keep their weights where they were."""

    def __init__(self, function: Callable[[Tensor], Tensor], **modules: nn.Module):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def layers_of(model: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    """The model as a chain: a Sequential, a list of modules, and the course's GPT, MLP and SmallResNet.

    Raises ValueError for another model: which of its functions belong to which layer only its author knows.
    """
    if isinstance(model, nn.Sequential | nn.ModuleList | list | tuple):
        return list(model)
    for kind, chain in ((GPT, _of_gpt), (MLP, _of_mlp), (SmallResNet, _of_resnet)):
        if isinstance(model, kind):
            return chain(model)
    raise ValueError(
        f"layers_of cannot cut a {type(model).__name__}: its forward may do more than call its children one after the "
        "other. Give a list of modules that do the same in a row, as Piece(lambda x: x.mean((2, 3)), …) does for a mean"
    )


def partition(
    model: nn.Module | Sequence[nn.Module], num_stages: int, costs: Sequence[float] | None = None
) -> list[nn.Sequential]:
    """The model in `num_stages` pieces in a row, which hold its own layers (no copies).

    costs: of each layer, for example from `measured_costs`; without them all count the same.
    Raises ValueError where there are fewer layers than stages, or not one cost a layer.
    """
    layers = layers_of(model)
    costs = [1.0] * len(layers) if costs is None else list(costs)
    if len(costs) != len(layers):
        raise ValueError(f"partition got {len(costs)} costs for {len(layers)} layers: give one for each layer")
    ends = list(accumulate(balanced(costs, num_stages)))
    return [nn.Sequential(*layers[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def _of_gpt(model: GPT) -> list[nn.Module]:
    words, places, dropout = model.token_embedding, model.position_embedding, model.dropout
    norm, head = model.final_norm, model.head  # not the model, which would keep the other stages' layers alive

    def embed(tokens: Tensor) -> Tensor:  # (B, T) to (B, T, h)
        return dropout(words(tokens) + places(torch.arange(tokens.shape[1], device=tokens.device)))

    first = FunctionLayer(embed, token_embedding=words, position_embedding=places, dropout=dropout)
    return [
        first,
        *model.blocks,
        FunctionLayer(lambda x: head(norm(x)), final_norm=norm, head=head),
    ]  # (B, T, h) to (B, T, V)


def _of_mlp(model: MLP) -> list[nn.Module]:
    *inner, last = model.layers
    return [*(FunctionLayer(lambda x, layer=layer: F.relu(layer(x)), layer=layer) for layer in inner), last]


def _of_resnet(model: SmallResNet) -> list[nn.Module]:
    stem = FunctionLayer(lambda x: F.relu(model.stem_norm(model.stem(x))), stem=model.stem, stem_norm=model.stem_norm)
    return [stem, *model.blocks, FunctionLayer(lambda x: model.head(x.mean((2, 3))), head=model.head)]
