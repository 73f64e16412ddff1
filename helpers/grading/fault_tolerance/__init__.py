"""Lab 12, fault tolerance: names the tasks that a check judges, and what of torch an answer may not use.

saving.py      12.save, on a simulated disk, and 12.interval: how and how often to save a checkpoint
membership.py  12.verdict and 12.regroup: which ranks have failed, and which node gets which rank next
resuming.py    12.resume and 12.reshard: what a rank reads when the job goes on

LAB is the lab's entry in labs.yaml: the order of its tasks, and what of torch no answer may use.
Begin with the module of the first task that LAB lists.
"""

from helpers.grading.registry import lab_of

LAB = lab_of("12")
