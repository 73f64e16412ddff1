"""Provides the models and the data sets of the course; none of them knows anything of parallelism.

mlp.py        MLP, the smallest model
resnet.py     SmallResNet, and resnet_parameters, which counts the parameters of a published ResNet
gpt.py        GPT with its GPTConfig and its loss; train_alone trains it in one process
data.py       digits, characters and synthetic samples; rank_slice and rank_generator give each rank its part
train_ddp.py  a complete DDP script for GPUs under torchrun, which resumes; it also runs on CPUs

Begin with gpt.py, which most chapters train.
"""

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
    "GPT", "MLP", "Characters", "GPTConfig", "SmallResNet", "resnet_parameters", "characters", "digits",
    "rank_generator", "rank_slice", "synthetic", "synthetic_tokens", "token_loss", "train_alone",
]  # fmt: skip
