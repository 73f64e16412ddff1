"""Splits a model into pipeline stages that take equally long.

    layers_of      the model as a chain of layers, each a module that maps one tensor to one tensor
    balanced       where to split the chain, so that the slowest stage is as fast as possible (helpers.schedules)
    partition      the stages as modules

`nn.Sequential(*model.children())`, which old posts use, is not the model: what `forward` does between the layers (a
relu, a mean over pixels, a reshape) is lost. `layers_of` puts it into the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.schedules import balanced
from helpers.workloads import GPT, MLP, SmallResNet


class FunctionLayer(nn.Module):
    """A layer made of a function of one tensor and the modules that it uses, which stay those of the model."""

    def __init__(self, function: Callable[[Tensor], Tensor], **modules: nn.Module):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def layers_of(model: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    """Return the model as a chain of layers: a Sequential, a list of modules, or the course's GPT, MLP or SmallResNet.

    Raises ValueError for another model, because only its author knows which of its functions belong to which layer.
    """
    if isinstance(model, nn.Sequential | nn.ModuleList | list | tuple):
        return list(model)
    for kind, chain in ((GPT, _of_gpt), (MLP, _of_mlp), (SmallResNet, _of_resnet)):
        if isinstance(model, kind):
            return chain(model)
    raise ValueError(
        f"layers_of cannot split a {type(model).__name__}: its forward may do more than call its children one after "
        "the other. Give a list of modules that do the same in a row, as FunctionLayer(lambda x: x.mean((2, 3)), …) "
        "does for a mean"
    )


def partition(
    model: nn.Module | Sequence[nn.Module], num_stages: int, costs: Sequence[float] | None = None
) -> list[nn.Sequential]:
    """Split the model into `num_stages` consecutive stages, which have its own layers (no copies).

    costs: of each layer, for example measured seconds; by default all count the same.
    Raises ValueError where there are fewer layers than stages, or not one cost per layer.
    """
    layers = layers_of(model)
    costs = [1.0] * len(layers) if costs is None else list(costs)
    if len(costs) != len(layers):
        raise ValueError(f"partition got {len(costs)} costs for {len(layers)} layers: give one for each layer")
    ends = list(accumulate(balanced(costs, num_stages)))  # `balanced` returns the number of layers of each stage
    return [nn.Sequential(*layers[start:end]) for start, end in pairwise([0, *ends])]


def _of_gpt(model: GPT) -> list[nn.Module]:
    tokens_of, positions_of, dropout = model.token_embedding, model.position_embedding, model.dropout
    norm, head = model.final_norm, model.head  # a reference to the model would keep the other stages' layers alive

    def embed(tokens: Tensor) -> Tensor:  # (B, T) to (B, T, h)
        return dropout(tokens_of(tokens) + positions_of(torch.arange(tokens.shape[1], device=tokens.device)))

    first = FunctionLayer(embed, token_embedding=tokens_of, position_embedding=positions_of, dropout=dropout)
    last = FunctionLayer(lambda x: head(norm(x)), final_norm=norm, head=head)  # (B, T, h) to (B, T, V)
    return [first, *model.blocks, last]


def _of_mlp(model: MLP) -> list[nn.Module]:
    *inner, last = model.layers
    # layer=layer binds the present layer; without it, all functions would use the last one
    return [*(FunctionLayer(lambda x, layer=layer: F.relu(layer(x)), layer=layer) for layer in inner), last]


def _of_resnet(model: SmallResNet) -> list[nn.Module]:
    # unlike those of the GPT, these functions refer to the model; it is so small that keeping it alive does not matter
    stem = FunctionLayer(lambda x: F.relu(model.stem_norm(model.stem(x))), stem=model.stem, stem_norm=model.stem_norm)
    return [stem, *model.blocks, FunctionLayer(lambda x: model.head(x.mean((2, 3))), head=model.head)]
