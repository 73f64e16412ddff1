"""Provides the models and the data sets of the course; none of them knows anything of parallelism."""

from helpers.workloads.data import (
    Characters,
    characters,
    digits,
    rank_generator,
    rank_slice,
    synthetic,
    synthetic_tokens,
)
from helpers.workloads.gpt import GPT, GPTConfig, token_loss, train_alone
from helpers.workloads.mlp import MLP
from helpers.workloads.resnet import SmallResNet, resnet_parameters

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
