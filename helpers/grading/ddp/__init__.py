"""Declares lab 03, in which learners write the parts of DistributedDataParallel, and where each of its tasks is judged.

gradients.py       03.start       every rank begins with the weights and buffers of rank 0
                   03.average     the mean of the ranks' gradients
communication.py   03.buckets     few messages instead of one per gradient
                   03.overlap     messages that are sent while backward still computes
training_steps.py  03.accumulate  the mean gradient of micro-batches of different lengths
                   03.rehearsed   a step that runs on gloo, made ready for NCCL
sampler.py         03.sampler     which examples a rank sees in each epoch
hints.yaml         what a learner is told about each known mistake
messages.yaml      what its judges say besides: names of values, and sentences about what is wrong

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("03")
