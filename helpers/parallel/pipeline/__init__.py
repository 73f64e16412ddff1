"""Pipeline parallelism: each rank holds some layers, and micro-batches pass through the ranks as a schedule says.

core.py             PipelineCore: this rank plays its row of the schedule: take, compute, send
stage.py            PipelineStage: the same, with what training asks for around it
partition.py        a model as stages that take equally long
stage_mail.py       messages between stages
split_backward.py   backward in two halves: gradients of inputs now, of weights later
"""

from helpers.parallel.pipeline.core import PipelineCore
from helpers.parallel.pipeline.partition import layers_of, partition
from helpers.parallel.pipeline.stage import PipelineStage

__all__ = ["PipelineCore", "PipelineStage", "layers_of", "partition"]
