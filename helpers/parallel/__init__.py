"""The parallelism strategies, one package each, without any instrumentation: they are observed from outside.

data_parallel      threads in one process, one replica per device, and all data through the master
ddp                one process per rank, gradients averaged in buckets during backward
amp                16-bit arithmetic: autocast, loss scaling, float32 master weights
memory             recomputation, offload, and a loss in chunks
pipeline           each rank has some layers; a schedule says how micro-batches pass through them
tensor_parallel    each rank has a shard of each matrix
zero               data parallelism without replicas, in three stages
context_parallel   each rank has some of the tokens of every sequence
shared             what two or more strategies use; strategies do not import each other

Each strategy is small enough to read in full, which the code of the libraries is not. Begin with ddp/simple.py.
"""
