"""Pipeline parallelism: each rank has some layers, and a schedule says how micro-batches pass through the ranks.

gpipe_and_1f1b.py  MiniPipeline: GPipe and 1F1B on one screen, as loops of sends and receives, in plain torch
core.py            PipelineCore: runs this rank's row of the schedule; for each action it receives, computes and sends
stage.py           PipelineStage: PipelineCore with tied weights, replicas, recomputation and split backward
partition.py       layers_of: a model as a chain of layers; partition: splits it into stages that take equally long
mailbox.py         StageMailbox: the messages between stages

Begin with gpipe_and_1f1b.py.
"""

from helpers.parallel.pipeline.core import PipelineCore
from helpers.parallel.pipeline.gpipe_and_1f1b import MiniPipeline
from helpers.parallel.pipeline.partition import layers_of, partition
from helpers.parallel.pipeline.stage import PipelineStage

__all__ = ["MiniPipeline", "PipelineCore", "PipelineStage", "layers_of", "partition"]
