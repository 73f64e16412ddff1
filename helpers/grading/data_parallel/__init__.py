"""Declares lab 02, in which learners write the parts of nn.DataParallel, and where each of its tasks is judged.

All tasks run in one process with N simulated devices. Device 0 is the master, which has the model and the optimizer.

scatter_gather.py   02.scatter, 02.gather        a batch is split, and the outputs are joined again
memory.py           02.memory                    the bytes of each device
replicate_step.py   02.replicate, 02.step        replicas of a model, and a whole training step on them
parallel_apply.py   02.parallel_apply            one thread per replica
hints.yaml          what a learner is told about each known mistake
messages.yaml       what its judges say besides: names of values, and sentences about what is wrong

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("02")
