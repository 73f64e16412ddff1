"""Composes the strategies: Trainer trains a model under any Plan, and its checkpoints can be loaded under another.

A Plan (helpers.specs) says how many ranks work on each axis of parallelism, and with which ZeRO stage and schedule.

trainer.py            Trainer: the order in which strategies are applied, and a training step
three_dimensions.py   process groups for dp, tp and pp and a training step on one screen, in plain torch
forward_backward.py   this rank's share of the batch, and forward and backward over it
context.py            this rank's tokens of each sequence, and the attention that exchanges the others
experts.py            this rank's experts of each layer, their auxiliary loss and their biases
axes.py               this rank's process group on each axis, and its random seed
refused.py            plans that the Trainer cannot run with a model; those of specs/trainable.py with none
state.py              the tensors that this rank stores, and the full state again
checkpoint/           save under one plan, load under another

It exists because strategies do not import each other, so that one place must say how they fit together. Begin with
three_dimensions.py, and then read trainer.py.
"""

from helpers.compose.trainer import Trainer
from helpers.specs import Plan

__all__ = ["Plan", "Trainer"]
