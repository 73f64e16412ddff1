"""Composing: any plan on live ranks, from the strategies, in the one right order.

trainer.py      Trainer: the order, and a step
parts.py        how this rank computes: all layers over micro-batches, or its stages of a pipeline
batch.py        the global batch: who gets which rows, and what its loss is divided by
axes.py         this rank's group on each axis, and its random numbers
refused.py      plans that do not exist yet, each with what it would send and the nearest one that works
checkpoint/     save under one plan, go on under another
"""

from helpers.compose.trainer import Trainer
from helpers.specs import Plan

__all__ = ["Plan", "Trainer"]
