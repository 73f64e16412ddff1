"""Pipeline parallelism: each rank has some layers, and a schedule says how micro-batches pass through the ranks.

core.py        PipelineCore: runs this rank's row of the schedule: receive, compute, send
stage.py       PipelineStage: the same, with what training asks for around it, and split backward
partition.py   splits a model into stages that take equally long
mailbox.py     StageMailbox: the messages between stages
"""

from helpers.parallel.pipeline.core import PipelineCore
from helpers.parallel.pipeline.partition import layers_of, partition
from helpers.parallel.pipeline.stage import PipelineStage

__all__ = ["PipelineCore", "PipelineStage", "layers_of", "partition"]
