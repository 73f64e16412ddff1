"""Models and data that know nothing of parallelism: an MLP, a GPT, a ResNet; digits, characters, synthetic sets."""

from .data import (
    Characters,
    characters,
    digits,
    rank_generator,
    rank_slice,
    synthetic,
    synthetic_tokens,
)
from .gpt import GPT, GPTConfig, token_loss, train_alone
from .mlp import MLP
from .resnet import SmallResNet, resnet_parameters

__all__ = [
    "GPT",
    "MLP",
    "Characters",
    "GPTConfig",
    "SmallResNet",
    "resnet_parameters",
    "characters",
    "digits",
    "rank_generator",
    "rank_slice",
    "synthetic",
    "synthetic_tokens",
    "token_loss",
    "train_alone",
]
