"""Lab 13, long context: names the tasks that a check judges, and what of torch an answer may not use.

sequence.py  13.zigzag: which tokens each rank has, and how shards in rank order become a sequence again

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with sequence.py.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("13")
