"""Declares lab 04, in which learners write mixed precision with loss scaling, and where each of its tasks is judged.

number_formats.py   04.scale     a loss scale with which the gradients fit into fp16
                    04.master    fp32 master weights for a model in 16 bits
scaler.py           04.scaler    dynamic loss scaling on one rank
                    04.overflow  the same decision on all ranks, when one of them sees an overflow
training_step.py    04.order     the order of unscaling, clipping, stepping and updating
hints.yaml          what a learner is told about each known mistake
messages.yaml       what its judges say besides: names of values, and sentences about what is wrong

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("04")
