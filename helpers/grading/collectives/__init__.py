"""Declares lab 01, in which learners write collectives from send and receive, and where each of its tasks is judged.

cost.py          01.cost                                 bytes and seconds of two all-reduces, by formulas
send_receive.py  01.shift, 01.all_to_all, 01.broadcast   messages between pairs of ranks, and along a tree
ring.py          01.reduce_scatter, 01.all_reduce        chunks that travel around a ring
hints.yaml       what a learner is told about each known mistake
messages.yaml    what its judges say besides: names of values, and sentences about what is wrong

LAB is the lab's entry in labs.yaml: its tasks in their order.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("01")
