"""Lab 13, long context: names the tasks that a check judges, and what of torch an answer may not use.

sequence.py  13.zigzag and 13.shard: which tokens each rank has, and what belongs to them
traffic.py   13.ulysses_bytes: what a rank sends per layer with Ulysses, and with the ring
blocks.py    13.merge and 13.hop: what a rank does with one block of keys and values, forward and backward

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("13")
