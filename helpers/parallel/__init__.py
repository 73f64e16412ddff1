"""One room a strategy. Each reads as a textbook: what is observed is observed from outside.

data_parallel     threads in one process, one replica a device, everything through the master
ddp               one process a rank, gradients averaged in buckets during backward
amp               16-bit arithmetic: autocast, loss scaling, float32 master weights
memory            recomputation, offload, a loss in chunks
pipeline          each rank holds some layers; micro-batches pass through as a schedule says
tensor_parallel   each rank holds a part of each matrix
zero              data parallel without the copies, in three stages
shared            what two rooms or more use; the rooms do not import each other
"""
