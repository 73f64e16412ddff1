"""Declares the exercises of chapter 00, which has no lab: sums and means of data that differs in length between ranks.

uneven_data.py   00.total   the number of examples on all ranks
                 00.mean    the mean of all losses
                 00.layers  the sum of each layer's gradients, one of which is missing on a rank
hints.yaml       what a learner is told about each known mistake
messages.yaml    the names of values in what the judges say

LAB is the lab's entry in labs.yaml: its tasks in their order.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("00")
