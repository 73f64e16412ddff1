"""Declares lab 06, in which learners write a pipeline, and where each of its tasks is judged.

schedule.py    06.gpipe        the order of actions in GPipe
               06.one_f_one_b  the order of actions in 1F1B
               06.bubble       the share of a step in which ranks idle, for any schedule
               06.under_way    how many micro-batches hide the round trip of one; only the chapter asks it
               06.cut          which layers form a stage
stage.py       06.stage        one rank that runs its list of actions, on live ranks
hints.yaml     what a learner is told about each known mistake
messages.yaml  what its judges say besides: names of values, and sentences about what is wrong

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("06")
